import sys
before = sorted(sys.modules)
print(before)
print(sorted(k for k in dir(sys)))
print(sys.path, sorted(sys.path_importer_cache), sys.meta_path, [str(h)[:30] for h in sys.path_hooks])
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile(), sys.excepthook is sys.__excepthook__)
print(sys.displayhook, sys.unraisablehook, hasattr(sys, "last_type"), sys.exc_info(), sys.is_finalizing())
import gc, warnings, zipimport
print(gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.garbage, gc.get_freeze_count())
print(warnings.filters, sorted(zipimport._zip_directory_cache))
print(sys.modules.get("sitecustomize"), sys.modules.get("usercustomize"))
import site, builtins
print(site.ENABLE_USER_SITE, site.USER_SITE, site.USER_BASE, site.PREFIXES, sorted(vars(builtins)))
# Not atexit._ncallbacks(): docs/spare.md lists it.
import codecs, locale
print(locale.getlocale(), locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())
