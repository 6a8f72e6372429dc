import multiprocessing as mp, os, sys
def f(q, n):
    print("child prints")
    q.put((n, mp.current_process().name, __name__, os.environ["SANDBOX_EXEC_ID"] != ""))
    if n == 2:
        raise ValueError("child fails")
if __name__ == "__main__":
    print(mp.get_start_method())
    q = mp.Queue()
    for i in range(3):
        p = mp.Process(target=f, args=(q, i))
        p.start()
        p.join()
        print(q.get())
        print(p.exitcode)
