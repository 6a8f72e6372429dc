import sys, traceback
def hook(t, e, tb):
    print("hook", t, e, [f.name for f in traceback.extract_tb(tb)], len(traceback.extract_tb(tb)), file=sys.stderr)
    print(tb.tb_frame.f_back, tb.tb_frame.f_code.co_name)
sys.excepthook = hook
def g():
    raise RuntimeError("x")
g()
