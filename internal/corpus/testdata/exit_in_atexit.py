import atexit, sys
@atexit.register
def f():
    sys.exit(9)
print("end")
