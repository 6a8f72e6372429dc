import sys, os, __main__
print(__name__, __file__ == os.path.abspath("main.py"), __doc__, __package__, __spec__, type(__loader__))
print(__loader__.name, __loader__.path == __file__, "__cached__" in globals() and __cached__)
print(sys.argv, sys.orig_argv, sys.path[0] == os.getcwd(), len(sys.path))
print(__main__ is sys.modules["__main__"], __main__.__dict__ is globals(), sorted(globals()))
print(sys.executable, sys.prefix, sys.exec_prefix, sys.flags, sys.warnoptions, sys._xoptions)
