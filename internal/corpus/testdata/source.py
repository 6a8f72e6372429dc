import inspect, linecache, pickle, runpy, copy, dataclasses, sys
@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
def f(a, *, b=1):
    """Doc."""
    return a + b
print(inspect.getsource(f), inspect.getsource(Point), inspect.getfile(f) == __file__, inspect.getmodule(f))
print(pickle.loads(pickle.dumps(Point(1))), pickle.dumps(f), Point.__module__)
print(linecache.getline(__file__, 2), f.__code__.co_filename == __file__, f.__module__)
open("other.py", "w").write("import sys\nprint(__name__, __file__, sys.argv[0])\nimport __main__\nprint(__main__.__name__)\n")
runpy.run_path("other.py", run_name="__main__")
runpy.run_module("other", run_name="elsewhere")
import importlib, main
print(main.__name__, main is sys.modules["__main__"])
