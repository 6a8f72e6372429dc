import multiprocessing as mp
def f(x): return x + 1, __name__
if __name__ == "__main__":
    ctx = mp.get_context("forkserver")
    with ctx.Pool(1) as p:
        print(p.map(f, [1, 2]))
