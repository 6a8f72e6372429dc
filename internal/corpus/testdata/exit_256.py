quit(256 + 3)
