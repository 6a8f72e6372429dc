import sys
def hook(*a):
    raise TypeError("in the hook")
sys.excepthook = hook
1 / 0
