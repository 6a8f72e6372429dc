class B(BaseException):
    pass
raise B("base")
