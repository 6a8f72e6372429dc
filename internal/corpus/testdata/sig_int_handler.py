import os, signal, time
came = []
def h(n, f):
    print("got", n, f.f_code.co_name)
    came.append(n)
signal.signal(signal.SIGINT, h)
os.kill(os.getpid(), signal.SIGINT)
try:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
except KeyboardInterrupt as e:
    print("interrupted", e.args)
signal.signal(signal.SIGALRM, h)
signal.setitimer(signal.ITIMER_REAL, 0.01)
while signal.SIGALRM not in came:  # pause() would miss one that came before it
    time.sleep(0.001)
