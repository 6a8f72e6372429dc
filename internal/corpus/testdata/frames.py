import sys, inspect, traceback, logging, warnings
f = sys._getframe()
print(f.f_back, f.f_code.co_name, len(inspect.stack()), inspect.stack()[0].code_context)
traceback.print_stack()
logging.basicConfig(format="%(levelname)s %(filename)s:%(lineno)d %(funcName)s %(message)s")
logging.warning("logged")
for level in (1, 2, 3):
    warnings.warn("warned", stacklevel=level)
print(traceback.format_stack())
