open("helper.py", "w").write("def f():\n    return 1 / 0\n\nx = f()\n")
import helper
