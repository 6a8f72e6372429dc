import sys, weakref
class D:
    def __init__(self, name): self.name = name
    def __del__(self):
        print("del", self.name, sys is not None, sys and sys.is_finalizing(), open is not None)
a = D("a")
_private = D("_private")
b = [D("in list")]
c = D("cycle"); c.c = c
import types
m = types.ModuleType("m"); m.d = D("in module"); sys.modules["m"] = m; m.self = m
f = weakref.finalize(a, print, "finalize a")
class Bad:
    def __del__(self): raise ValueError("in del")
bad = Bad()
