import sys, os, stat, fcntl
s = sys.stdin
print(s is sys.__stdin__, s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.isatty(), s.seekable(), s.closed)
print(type(s), type(s.buffer), type(s.buffer.raw), s.fileno(), vars(s), repr(s), repr(s.buffer.raw), vars(s.buffer.raw))
print(s.buffer.raw.name, s.buffer.raw.mode, s.buffer.raw.closefd, s.buffer.raw._blksize)
st = os.fstat(0)
print(stat.filemode(st.st_mode), oct(fcntl.fcntl(0, fcntl.F_GETFL)), fcntl.fcntl(0, fcntl.F_GETFD), os.get_inheritable(0))
print(repr(s.readline()), repr(s.read(3)), s.buffer.read(), s.newlines)
print(open(__file__).fileno())
