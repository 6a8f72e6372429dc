import os
os.environ["PYTHONINSPECT"] = "1"
print("then the interpreter reads its input")
