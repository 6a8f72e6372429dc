import sys, os, stat, fcntl
for s, o in ((sys.stdin, sys.__stdin__), (sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__)):
    print(s is o, s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.isatty(), s.seekable(), s.closed)
    print(type(s), type(s.buffer), type(getattr(s.buffer, "raw", s.buffer)), s.fileno(), vars(s), s.readable(), s.writable())
    raw = getattr(s.buffer, "raw", s.buffer)
    print(raw.name, raw.mode, raw.closefd, raw._blksize, repr(s), repr(raw))
for fd in range(3):
    st = os.fstat(fd)
    print(fd, stat.filemode(st.st_mode), st.st_uid, st.st_size, st.st_blksize, oct(fcntl.fcntl(fd, fcntl.F_GETFL)), fcntl.fcntl(fd, fcntl.F_GETFD), os.get_blocking(fd), os.get_inheritable(fd))
print(open(__file__).fileno())
