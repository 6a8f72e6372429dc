print("never")
if True
    pass
