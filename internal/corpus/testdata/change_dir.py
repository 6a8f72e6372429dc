import os, sys
os.mkdir("d"); os.chdir("d"); os.umask(0o077)
open("f", "w").close()
print(oct(os.stat("f").st_mode), os.path.abspath(__file__) == __file__)
os.remove(__file__)
1 / 0
