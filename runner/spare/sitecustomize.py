# The wait of a spare Python; docs/spare.md says how it comes to run.
#
# The interpreter was started as "python3 -u main.py" and imports this as the last
# step of its start. When it returns, the interpreter itself goes on to run main.py:
# nothing of a program's run is imitated here. So all that matters is to leave no
# trace.


def _shorten_end():
    """Has the interpreter's last collections find nothing, where no program could tell.

    They are a third of the interpreter's end. What they destroy matters only if it
    does something then: a file, a generator, an object with __del__, a weak reference
    with a callback, what a C module keeps. If nothing is of that kind, they pass by every
    object; the rest of the end is as it always is. Whatever is not known to be harmless is
    taken for the opposite.

    Returns what is to be called before each wait, and at the hand-over.
    """
    import sys

    # A collector with three generations: until 3.13, unless it has no global lock.
    if (sys.implementation.name != "cpython" or not (3, 11) <= sys.version_info[:2] < (3, 14)
            or not getattr(sys, "_is_gil_enabled", lambda: True)()):
        return lambda: None, lambda: None

    had = set(sys.modules)
    import _thread
    import _weakref
    import atexit
    import gc

    for name in {"_thread", "_weakref", "atexit", "gc"} - had:
        del sys.modules[name]
    if atexit._ncallbacks():  # what a .pth file registered would run after this
        return lambda: None, lambda: None

    def getter(kind, name):  # no program can overwrite it
        return kind.__dict__[name].__get__

    ref, module, function, builtin = _weakref.ref, type(sys), type(_shorten_end), type(len)
    mro, namespace, flags = (getter(type, name) for name in ("__mro__", "__dict__", "__flags__"))
    callback_of, contents = getter(ref, "__callback__"), getter(module, "__dict__")
    collected = 1 << 14  # Py_TPFLAGS_HAVE_GC
    importlib = sys.modules["_frozen_importlib"]
    external = sys.modules["_frozen_importlib_external"]
    # Modules in C: what they keep does nothing when it is destroyed.
    harmless = set(
        "_abc _asyncio _ast _bisect _blake2 _codecs _collections _contextvars _csv _datetime "
        "_decimal _functools _hashlib _heapq _imp _io _json _locale _md5 _opcode _operator "
        "_pickle _posixsubprocess _queue _random _sha1 _sha2 _sha256 _sha3 _sha512 _signal "
        "_sre _stat _statistics _string _struct _symtable _thread _tokenize _tracemalloc "
        "_typing _uuid _warnings _weakref _zoneinfo array atexit binascii builtins cmath "
        "errno faulthandler fcntl gc grp itertools marshal math posix pwd resource sys termios "
        "time unicodedata zlib".split())
    # Callbacks that take out of a container what stood there for what is gone.
    forget = set(
        "WeakSet.__init__.<locals>._remove WeakValueDictionary.__init__.<locals>.remove "
        "WeakKeyDictionary.__init__.<locals>.remove _get_module_lock.<locals>.cb".split())
    forgetful = "weakref", "_weakrefset", "importlib._bootstrap", "_frozen_importlib"
    forget_in_c = "_destroy", "_localdummy_destroyed", "clear_locals"  # of _abc.c, _threadmodule.c
    streams = "stdin", "__stdin__", "stdout", "__stdout__", "stderr", "__stderr__"
    then = {}  # what was so at the hand-over

    def is_any(o, others):
        return any(o is other for other in others)  # "in" would ask a metaclass

    def has_del(kind):
        return any("__del__" in namespace(base) for base in mro(kind))

    def standard():
        """The standard streams and what they consist of."""
        parts = []
        for name in streams:
            part = getattr(sys, name, None)
            while part is not None:
                parts.append(part)
                part = getattr(part, "buffer", None) or getattr(part, "raw", None)
        return parts

    def only_forgets(callback):
        if type(callback) is function:
            return callback.__module__ in forgetful and callback.__code__.co_qualname in forget
        return callback is None or type(callback) is builtin and callback.__name__ in forget_in_c

    def is_known(o):
        """Whether a module does nothing when it is destroyed."""
        spec = contents(o).get("__spec__")
        if spec is None:
            return True  # __main__, or made by a program
        if type(spec) is not importlib.ModuleSpec:
            return False
        in_c = spec.loader is importlib.BuiltinImporter or type(spec.loader) is external.ExtensionFileLoader
        return not in_c or spec.name in harmless

    def does_nothing(objects, but=()):
        kinds = {id(kind): kind for kind in map(type, objects)}.values()
        telling = [kind for kind in kinds if has_del(kind)]
        if telling and not all(is_any(o, but) for o in objects if is_any(type(o), telling)):
            return False
        for o in objects:
            bases = mro(type(o))
            if is_any(ref, bases):
                if not only_forgets(callback_of(o)):
                    return False
            elif is_any(module, bases):
                if not is_known(o):
                    return False
            elif type(o) is _weakref.ProxyType or type(o) is _weakref.CallableProxyType:
                return False
        return True

    def uncounted():
        """How many objects there are of classes with __del__ that the collector does not know."""
        return [sys.getrefcount(kind) for kind in then["uncollected"]]

    def collections():
        return [generation["collections"] for generation in gc.get_stats()[1:]]

    def tidy():
        gc.collect()  # so that what is new can be told from the rest
        objects = gc.get_objects()
        then["old"] = does_nothing(objects, standard())
        then["uncollected"] = [o for o in objects if is_any(type, mro(type(o))) and not flags(o) & collected and has_del(o)]

    def handed_over():
        then["streams"] = [id(getattr(sys, name, None)) for name in streams]
        then["collections"], then["uncounted"] = collections(), uncounted()

    def called():
        """Whether a program called the exit's functions by itself."""
        try:
            sys._getframe(2)
        except ValueError:
            return False
        return True

    def end():
        try:
            if (then["old"] and then["collections"] == collections() and then["uncounted"] == uncounted()
                    and then["streams"] == [id(getattr(sys, name, None)) for name in streams]
                    and "gc" not in sys.modules and not _thread._count() and not called()
                    and does_nothing(gc.get_objects(0) + gc.get_objects(1))):
                gc.freeze()
        except BaseException:
            pass  # it ends as it always does

    atexit.register(end)  # the first to be registered, so the last to run
    return tidy, handed_over


def _wait():
    import os
    import sys
    import zipimport

    control, archive, stdin = 100, 101, 102  # spareControl and so on in Go
    path = "/proc/self/fd/%d" % archive
    if not hasattr(sys, "argv"):  # before 3.8 it is set too late to be changed here
        os._exit(1)

    tidy, handed_over = _shorten_end()

    # This module came from an archive that PYTHONPATH named.
    os.close(archive)
    while path in sys.path:
        sys.path.remove(path)
    sys.path_importer_cache.pop(path, None)
    zipimport._zip_directory_cache.pop(path, None)
    # In its place: the runner removes it later if it was not there before.
    os.environb[b"PYTHONPATH"] = os.environb[b"PYTHONPATH"][len(path) + 1:]

    def receive():
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            piece = os.read(control, 65536)
            if not piece:  # the runner has ended
                os._exit(0)
            data += piece
        return data[4:]

    def send(fields):
        body = b"\0".join(fields)
        body = len(body).to_bytes(4, "big") + body
        while body:
            body = body[os.write(control, body):]

    # The image's own sitecustomize is imported after the hand-over, and so is
    # usercustomize, by site. They are found now, and the code is read.
    external = sys.modules["_frozen_importlib_external"]
    finders, path_then = sys.meta_path[:], sys.path[:]
    site_spec = external.PathFinder.find_spec("sitecustomize")
    user_spec = external.PathFinder.find_spec("usercustomize")
    site_code = None
    if site_spec is not None and type(site_spec.loader) is external.SourceFileLoader:
        try:
            site_code = site_spec.loader.get_code("sitecustomize")
        except BaseException:  # the import has it again
            pass

    # What the interpreter has read of the disk at its start: a change there makes
    # this spare stale. A .pth file may be written in place.
    seen = []
    site = sys.modules.get("site")
    for place in sys.path + [getattr(site, "USER_SITE", None) or ""]:
        if place and os.fsencode(place) not in seen:
            seen.append(os.fsencode(place))
            try:
                names = os.listdir(place)
            except OSError:
                continue
            seen += [os.fsencode(os.path.join(place, n)) for n in names if n.endswith(".pth")]
    if site_code is not None:
        seen += [os.fsencode(f) for f in (site_spec.origin, site_spec.cached) if f]
    user_import = getattr(site, "execusercustomize", None)

    def writable(place):
        try:
            return os.access(place, os.W_OK) or os.stat(place).st_uid == os.geteuid()
        except OSError:
            return False

    # Nobody can put a module where none is now.
    settled = not any(writable(place) for place in sys.path if place)
    # As the interpreter calls it: it makes the path absolute since 3.9.
    script = os.path.join(os.getcwd(), "main.py") if sys.version_info >= (3, 9) else "main.py"
    # The mark is the last variable that an interpreter is given. What is behind it came at
    # the start: in the C locale CPython sets LC_CTYPE.
    names = list(os.environb)
    added = names[names.index(b"SANDBOX_EXEC_ID") + 1:]
    preloaded = False
    tidy()
    try:
        send(seen)
        while True:
            body = receive()  # it waits for the answer: never two at once
            fields = body[1:].split(b"\0")
            if body[:1] != b"P":
                break
            preloaded = True
            try:
                __import__(os.fsdecode(fields[0]))
                tidy()
                send([])
            except BaseException as e:
                send([("%s: %s" % (type(e).__name__, e)).encode("utf-8", "replace")])
    except OSError:
        os._exit(0)  # the runner has ended

    # The hand-over: see handOver in Go.
    takes_stdin = fields.pop(0) == b"1"
    directory = fields.pop(0)
    if preloaded:  # and perhaps taken elsewhere
        os.chdir(directory)
    lists = []
    for _ in range(3):
        n = int(fields.pop(0))
        lists.append(fields[:n])
        del fields[:n]
    args, unset, assign = lists
    for name in unset:
        os.environb.pop(name, None)
    for entry in assign:
        name, _, value = entry.partition(b"=")
        os.environb[name] = value
    for name in added:  # it comes last there, too
        if name in os.environb:
            os.environb[name] = os.environb.pop(name)
    args = [os.fsdecode(a) for a in args]
    sys.argv += args
    if hasattr(sys, "orig_argv"):
        sys.orig_argv += args
    if takes_stdin:
        # /dev/null was standard input; what the interpreter made of it is made anew,
        # as create_stdio in CPython's pylifecycle.c does.
        import io

        os.dup2(stdin, 0)
        old = sys.stdin
        raw = io.open(0, "rb", -1, None, None, None, False)
        raw.raw.name = "<stdin>"
        new = io.TextIOWrapper(raw, old.encoding, old.errors, "\n", False, True)
        new.mode = "r"
        sys.stdin = sys.__stdin__ = new
    os.close(control)
    os.close(stdin)
    handed_over()

    # Before it runs main.py the interpreter asks whether that is a directory or an
    # archive, and notes that it is neither. The runner gives no archive to a spare.
    sys.path_importer_cache.setdefault(script, None)

    def once(name, answer):
        """Answers one question where PathFinder, the last to be asked, would, and is gone."""
        def find_spec(asked, path=None, target=None):
            sys.meta_path[:] = [f for f in sys.meta_path if f is not finder]
            return answer(name) if asked == name else external.PathFinder.find_spec(asked, path, target)

        finder = type(sys.implementation)(find_spec=find_spec)  # no class: classes are seen
        sys.meta_path.insert(sys.meta_path.index(external.PathFinder), finder)

    def missing(name):
        raise ModuleNotFoundError("No module named %r" % name, name=name)

    def found(name):
        def get_code(name):
            del site_spec.loader.get_code
            return site_code

        if site_code is not None:
            site_spec.loader.get_code = get_code
        return site_spec

    def as_started():
        return sys.path == path_then and sys.meta_path == finders and finders[-1:] == [external.PathFinder]

    def before():
        """Comes before the import of sitecustomize."""
        if as_started() and (site_spec or settled):
            once("sitecustomize", found if site_spec else missing)

    def after():
        """Comes after it, before site's import of usercustomize, if there is one."""
        if (as_started() and settled and user_spec is None and getattr(site, "ENABLE_USER_SITE", False)
                and site.execusercustomize is user_import and "usercustomize" not in sys.modules):
            once("usercustomize", missing)

    return before, after


_before, _after = _wait()
del _wait, _shorten_end

# The image's own sitecustomize comes now, or is missed just as without a spare.
# Python 3.9's zipimport wants to find an entry to remove when this raises.
import sys

_self = sys.modules.pop("sitecustomize")
_before()
try:
    import sitecustomize
except BaseException as e:
    sys.modules.setdefault("sitecustomize", _self)
    if isinstance(e, Exception):
        _after()
    raise
_after()
