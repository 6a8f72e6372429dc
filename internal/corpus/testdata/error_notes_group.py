def sub(i):
    try:
        raise ValueError(i)
    except ValueError as e:
        e.add_note(f"note {i}")
        return e
raise ExceptionGroup("several", [sub(1), sub(2), TypeError("t")])
