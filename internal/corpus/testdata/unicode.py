import sys
print("äöü € 🎉 \u202e \x00 \x1b[31m")
print("\udc80".encode("utf-8", "surrogateescape"))
sys.stderr.write("\udcff on stderr\n")
print("\udcff")
