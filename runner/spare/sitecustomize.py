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

    def receive(n):
        data = b""
        while len(data) < n:
            piece = os.read(control, n - len(data))
            if not piece:  # the runner has ended
                os._exit(0)
            data += piece
        return data

    def send(fields):
        body = b"\0".join(fields)
        body = len(body).to_bytes(4, "big") + body
        while body:
            body = body[os.write(control, body):]

    # The image's own sitecustomize is looked for after the hand-over; by then the
    # directories that are searched have been read.
    find = sys.modules["_frozen_importlib_external"].PathFinder.find_spec
    find("sitecustomize")
    find("usercustomize")

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
    try:
        send(seen)
        while True:
            body = receive(int.from_bytes(receive(4), "big"))
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
    os.close(control)
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
    os.close(stdin)


_wait()
del _wait

# The image's own sitecustomize comes now, or is missed just as without a spare.
# Python 3.9's zipimport wants to find an entry to remove when this raises.
import sys

_self = sys.modules.pop("sitecustomize")
try:
    import sitecustomize
except BaseException:
    sys.modules.setdefault("sitecustomize", _self)
    raise
