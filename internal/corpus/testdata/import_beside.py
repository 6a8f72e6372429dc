import sys, importlib
open("beside.py", "w").write("print('beside', __name__)\nvalue = 1\n")
import beside
open("json.py", "w").write("shadow = True\n")
import json
print(json.shadow, json.__file__ == sys.path[0] + "/json.py")
import os.path, collections
print(importlib.util.find_spec("nowhere"))
import nowhere
