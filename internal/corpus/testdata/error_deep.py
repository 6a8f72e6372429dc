import sys
def depth():
    n = 0
    def f():
        nonlocal n
        n += 1
        f()
    try:
        f()
    except RecursionError as e:
        return n, str(e)
print(depth())
sys.setrecursionlimit(60)
print(depth())
def g():
    g()
g()
