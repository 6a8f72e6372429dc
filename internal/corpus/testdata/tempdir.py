import atexit, tempfile, os, warnings
# Which of the files that are left warn last depends on what was collected before.
atexit.register(warnings.simplefilter, "ignore")
tempfile._name_sequence = iter("name%d" % i for i in range(100))  # warnings print the names
warnings.showwarning = lambda m, c, *a, **k: print("warning", c.__name__, str(m).partition("tmp")[0].partition(" object")[0])
warnings.simplefilter("always")
t = tempfile.TemporaryDirectory(dir=".")
open(os.path.join(t.name, "f"), "w").close()
n = tempfile.NamedTemporaryFile(dir=".")
s = tempfile.SpooledTemporaryFile()
s.write(b"x")
print(os.path.isdir(t.name))
@atexit.register
def look():
    print(sorted(len(x) for x in os.listdir(".") if x.startswith("tmp")))
