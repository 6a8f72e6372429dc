import warnings
warnings.simplefilter("always")
def f():
    open("x", "w")
f()
y = open("y", "w")
