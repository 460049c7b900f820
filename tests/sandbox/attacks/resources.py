"""Programs that try to use up time, memory, space or output, or to crash."""

from tests.sandbox.attacks.attack import STOPPED, Attack

RESOURCES = {
    "a memory bomb": Attack(
        """\
kept = []
while True: kept.append(bytearray(1 << 24))
""",
        statuses=STOPPED,
    ),
    "one huge allocation": Attack(
        """\
attempt(lambda: len(bytearray(1 << 36))); held()
""",
    ),
    "a memory bomb in threads": Attack(
        """\
import threading
def grow():
    kept = []
    while True: kept.append(bytearray(1 << 22))
threads = [threading.Thread(target=grow) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
held()
""",
        statuses=("ok", *STOPPED),
    ),
    "memory that no limit counts": Attack(
        """\
# memfd_create, memfd_secret, shmget, msgget, semget, inotify_init1
for arguments in ((319, ctypes.addressof(ctypes.create_string_buffer(b'x')), 0), (447, 0),
                  (29, 0, 1 << 20, 0o1600), (68, 0, 0o1600), (64, 0, 1, 0o1600), (294, 0)):
    attempt(syscall, *arguments)
held()
""",
    ),
    "fill the temporary folder": Attack(
        """\
written = 0
try:
    for number in range(1000):
        with open(f'/tmp/{number}', 'wb', buffering=0) as file:
            written += file.write(bytes(1 << 20))
except OSError: pass
held() if 8 << 20 < written <= 16 << 20 else escaped(written)
""",
        times=3,
    ),
    "use up all file names": Attack(
        """\
made = 0
try:
    for made in range(100_000): open(f'/tmp/{made}', 'w').close()
except OSError: pass
held() if 500 < made < 2000 else escaped(made)
""",
        times=3,
    ),
    "nest folders without end": Attack(
        """\
try:
    while True:
        os.mkdir('d'); os.chdir('d')
except OSError: held()
""",
        times=2,
    ),
    "an output bomb": Attack(
        """\
while True: print('x' * 100_000)
""",
        statuses=STOPPED,
    ),
    "an output bomb that ignores errors": Attack(
        """\
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
while True:
    try: os.write(1, bytes(1 << 20))
    except OSError: pass
""",
        statuses=("timeout",),
    ),
    "an error output bomb": Attack(
        """\
while True: os.write(2, bytes(1 << 20))
""",
        statuses=("timeout",),
    ),
    "make the output huge without writing it": Attack(
        """\
attempt(os.ftruncate, 1, 1 << 40); attempt(os.posix_fallocate, 1, 0, 1 << 34)
attempt(lambda: os.truncate('/tmp/x', 1 << 40) if open('/tmp/x', 'w') else 0); held()
""",
    ),
    "an endless loop": Attack(
        """\
while True: pass
""",
        statuses=("timeout",),
    ),
    "an endless loop that ignores signals": Attack(
        """\
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: pass
""",
        statuses=("timeout",),
    ),
    "an endless loop that catches every error": Attack(
        """\
while True:
    try:
        while True: pass
    except BaseException: pass
""",
        statuses=("timeout",),
    ),
    "an endless loop in C": Attack(
        """\
sum(range(10 ** 15))
""",
        statuses=("timeout",),
    ),
    "a regular expression without end": Attack(
        """\
import re
re.match('(a+)+$', 'a' * 60 + 'b')
""",
        statuses=("timeout",),
    ),
    "sleep": Attack(
        """\
time.sleep(1000)
""",
        statuses=("timeout",),
    ),
    "wait for input that never comes": Attack(
        """\
r, w = os.pipe()
os.read(r, 1)
""",
        statuses=("timeout",),
    ),
    "an endless loop at exit": Attack(
        """\
import atexit
def again():
    while True: pass
atexit.register(again)
""",
        statuses=("timeout",),
    ),
    "busy threads": Attack(
        """\
import threading, hashlib
def work():
    while True: hashlib.sha256(bytes(1 << 20)).digest()
for _ in range(16): threading.Thread(target=work).start()
""",
        statuses=STOPPED,
    ),
    "a thread bomb": Attack(
        """\
import threading
threading.stack_size(32768)
started = 0
try:
    for started in range(10_000):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
except RuntimeError: pass
held() if started < 64 else escaped(started)
""",
    ),
    "use up file descriptors": Attack(
        """\
opened = 0
try:
    for opened in range(100_000): os.dup(0)
except OSError: pass
held() if opened < 100 else escaped(opened)
""",
    ),
    "large pipes": Attack(
        """\
import fcntl
total = 0
try:
    while True:
        r, w = os.pipe()
        total += fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 1 << 20)
        os.set_blocking(w, False)
        os.write(w, bytes(1 << 20))
except OSError: pass
held() if total <= 64 << 20 else escaped(total)
""",
    ),
    "crash the interpreter": Attack(
        """\
ctypes.string_at(0)
""",
        statuses=("error",),
    ),
    "abort": Attack(
        """\
os.abort()
""",
        statuses=("error",),
    ),
    "overflow the stack": Attack(
        """\
sys.setrecursionlimit(10 ** 9)
class A:
    def __repr__(self): return repr(self)
repr(A())
""",
        statuses=STOPPED,
    ),
    "crash the compiler": Attack(
        """\
eval('(' * 100 + '-' * 5_000_000)
""",
        statuses=STOPPED,
    ),
    "numbers without end": Attack(
        """\
9 ** 9 ** 9
""",
        statuses=STOPPED,
    ),
}
