# What the start of the interpreter leaves in the import system.
import sys

print(sys.meta_path)
print(sys.path)
print(sorted(sys.path_importer_cache))
print(sys.path_importer_cache.get(__file__, "none"))
print("usercustomize" in sys.modules)
own = sys.modules.get("sitecustomize")
print(own is not None)
if own is not None:
    print(own)
    print(sorted(vars(own)))
    print(own.__spec__)
    print(sorted(vars(own.__loader__)))
# A spare has compiled something: docs/spare.md lists it.
print(sorted(repr(c) for c in object.__subclasses__() if c.__name__ != "AST"))
