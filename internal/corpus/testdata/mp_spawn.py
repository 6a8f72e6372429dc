import multiprocessing as mp, sys, os
class Point:
    def __init__(self, x): self.x = x
def f(p):
    return p.x * 2, __name__, sys.argv, [a for a in sys.path if "fd" in a], os.environ.get("PYTHONPATH")
if __name__ == "__main__":
    ctx = mp.get_context("spawn")
    with ctx.Pool(2) as pool:
        print(pool.map(f, [Point(1), Point(2)]))
    m = ctx.Manager()
    d = m.dict(); d["a"] = 1
    print(dict(d))
