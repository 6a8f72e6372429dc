import sys
sys.stdout = None
print("nowhere")
class W:
    def write(self, s): sys.stderr.write("W:" + s)
    def flush(self): raise ValueError("flush fails")
sys.stdout = W()
print("somewhere")
