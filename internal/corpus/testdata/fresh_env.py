import sys, os
print(sys.flags.optimize, sys.flags.dont_write_bytecode, os.environ["PYTHONOPTIMIZE"])
