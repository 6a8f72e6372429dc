# The collector does not know what scandir returns, nor does it count it.
import os
import warnings

warnings.simplefilter("always")
warnings.showwarning = lambda message, *_, write=os.write: write(1, b"warned\n")
left = os.scandir("/")
next(left)


def function():
    return left


print("end")
