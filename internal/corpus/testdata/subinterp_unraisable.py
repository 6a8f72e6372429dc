import sys, gc
class C:
    def __del__(self): raise RuntimeError("unraisable")
sys.unraisablehook = lambda u: print("hook", u.exc_type, u.object is not None)
C()
del sys.unraisablehook
C()
sys.unraisablehook = sys.__unraisablehook__
C()
print(gc.collect() >= 0)
