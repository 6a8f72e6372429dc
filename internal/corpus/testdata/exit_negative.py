exit(-1)
