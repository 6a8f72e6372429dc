import asyncio
async def main():
    async def part(i):
        await asyncio.sleep(0.001 * i)
        return i
    print(await asyncio.gather(*(part(i) for i in range(5))))
    p = await asyncio.create_subprocess_exec("sh", "-c", "cat; exit 3", stdin=-1, stdout=-1)
    print(await p.communicate(b"through"), p.returncode)
    asyncio.get_running_loop().create_task(asyncio.sleep(60))
    fut = asyncio.get_running_loop().create_future()
    fut.set_exception(ValueError("never retrieved"))
asyncio.run(main())
