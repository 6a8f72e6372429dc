import sys, threading
events = []
def tr(f, e, a):
    events.append((f.f_code.co_name, e, f.f_lineno))
    return tr
sys.settrace(tr)
def g(x):
    return x + 1
g(1)
sys.settrace(None)
print(events)
