import sys
print(sys.getrefcount(sys.modules["__main__"]) > 0)
seen = []
sys.addaudithook(lambda e, a: seen.append(e) if len(seen) < 40 and e.startswith(("open", "os.", "import", "subprocess", "cpython")) else None)
open("x", "w").close()
import wave
print(seen[:1])
