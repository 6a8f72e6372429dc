import sys
sys.exit("a message: ü")
