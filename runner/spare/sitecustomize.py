# The wait of a spare Python; docs/spare.md says how it comes to run.
#
# The interpreter was started as "python3 -u main.py" and imports this as the last
# step of its start. When it returns, the interpreter itself goes on to run main.py:
# nothing of a program's run is imitated here. So all that matters is to leave no
# trace.


def _wait():
    import os
    import sys
    import zipimport

    control, archive, stdin = 100, 101, 102  # spareControl and so on in Go
    path = "/proc/self/fd/%d" % archive
    if not hasattr(sys, "argv"):  # before 3.8 it is set too late to be changed here
        os._exit(1)

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
    try:
        send(seen)
        while True:
            body = receive()  # it waits for the answer: never two at once
            fields = body[1:].split(b"\0")
            if body[:1] != b"P":
                break
            try:
                __import__(os.fsdecode(fields[0]))
                send([])
            except BaseException as e:
                send([("%s: %s" % (type(e).__name__, e)).encode("utf-8", "replace")])
    except OSError:
        os._exit(0)  # the runner has ended

    # The hand-over: see handOver in Go.
    takes_stdin = fields.pop(0) == b"1"
    fields.pop(0)  # the working directory, which it has already
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
del _wait

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
