# The exit's functions can be called before the exit.
import atexit
import os

atexit._run_exitfuncs()
left = open(os.dup(1), "w")
left.write("kept until the end\n")


def function():
    return left


print("end")
