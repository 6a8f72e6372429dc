import os
os.chdir("/")
def f(): raise ValueError("the source is found")
f()
