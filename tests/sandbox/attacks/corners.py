"""Programs that look for a corner that nobody thought of."""

from tests.sandbox.attacks.attack import STOPPED, Attack

CORNERS = {
    "leave a lock on the shared null device": Attack(
        """\
import fcntl
own = os.open('/dev/null', os.O_RDWR)
try: fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError: escaped('an earlier test holds it')
fcntl.flock(own, fcntl.LOCK_UN)
fcntl.flock(2, fcntl.LOCK_EX | fcntl.LOCK_NB); held()
""",
        times=3,
    ),
    "change the state of standard error for later tests": Attack(
        """\
import fcntl
if fcntl.fcntl(2, fcntl.F_GETFL) & os.O_NONBLOCK: escaped()
fcntl.fcntl(2, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND); held()
""",
        times=3,
    ),
    "have the host's core dump handler started": Attack(
        """\
if libc.prctl(3, 0, 0, 0, 0) != 0: escaped('dumpable')
if libc.prctl(4, 1, 0, 0, 0) == 0: escaped('made dumpable')
held()
""",
        escapes_unprotected=True,
    ),
    "call the kernel as a 32-bit program": Attack(
        """\
import mmap, platform
if platform.machine() != 'x86_64': held(); sys.stdout.flush(); os._exit(0)
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex('b802000000cd80c3'))  # fork by int 0x80
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
if ctypes.CFUNCTYPE(ctypes.c_int)(address)() == 0: os._exit(0)
escaped()
""",
        statuses=("ok", "error"),
    ),
    "make a thread with namespaces of its own": Attack(
        """\
stack = ctypes.create_string_buffer(1 << 16)
top = ctypes.addressof(stack) + (1 << 15)
for flag in (0x20000, 0x20000000, 0x40000000, 0x10000000, 0x08000000, 0x04000000, 0x02000000):
    # CLONE_VM | CLONE_SIGHAND | CLONE_THREAD; one that is made dies at once
    pid = libc.syscall(56, 0x100 | 0x800 | 0x10000 | flag, top, 0, 0, 0)
    if pid > 0: escaped(hex(flag))
held()
""",
        statuses=("ok", "error"),
    ),
    "call what a newer kernel may have": Attack(
        """\
for number in [*range(470, 1200), 0x3fffffff]:
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS:
        escaped(number)
held()
""",
    ),
    "stop itself": Attack(
        """\
for number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
    os.kill(os.getpid(), number); signal.raise_signal(number)
held()
""",
        statuses=("ok", *STOPPED),
    ),
    "wait in a system call filter of its own": Attack(
        """\
# every call but seccomp's own waits for a supervisor that never comes
code = struct.pack('HBBI', 6, 0, 0, 0x7fc00000)
buffer = ctypes.create_string_buffer(code, len(code))
header = ctypes.create_string_buffer(struct.pack('HP', 1, ctypes.addressof(buffer)))
libc.syscall(317, 1, 8, header)
time.sleep(100)
""",
        statuses=STOPPED,
    ),
    "leave the main thread and go on in another": Attack(
        """\
import threading
def go_on():
    time.sleep(0.1); os.write(1, b'ESCAPED')
    while True: time.sleep(1)
threading.Thread(target=go_on).start()
libc.syscall(60, 0)
""",
        statuses=STOPPED,
    ),
    "outlive its deadline in threads that block all signals": Attack(
        """\
import threading
def work():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    while True: pass
for _ in range(8): threading.Thread(target=work, daemon=False).start()
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); work()
""",
        statuses=("timeout",),
    ),
    "look for earlier tests among the objects in memory": Attack(
        """\
import gc
wanted = '-'.join(['SECRET', 'OF', 'AN', 'EARLIER', 'TEST'])
for thing in gc.get_objects():
    for part in gc.get_referents(thing):
        if part is wanted: continue
        if isinstance(part, str) and wanted in part: escaped('text')
        if isinstance(part, (bytes, bytearray)) and wanted.encode() in part: escaped('bytes')
held()
""",
        seconds=5,
    ),
    "look for earlier tests in raw memory": Attack(
        """\
# with one bit flipped, so that this program does not find itself
hidden, flipped = b'RDBSDU,NG,@O,D@SMHDS,UDRU', bytes(i ^ 1 for i in range(256))
libc.sbrk.restype = ctypes.c_void_p
end, looked = libc.sbrk(0), 0
vector = ctypes.create_string_buffer(1)
for page in range(1, 16384):
    address = (end // 4096 - page) * 4096
    if libc.mincore(ctypes.c_void_p(address), 4096, vector) == 0:
        looked += 1
        if hidden in ctypes.string_at(address, 4096).translate(flipped): escaped(hex(address))
held() if looked > 100 else escaped(f'only {looked} pages were there to look at')
""",
        statuses=("ok", "error"),
        seconds=5,
    ),
    "renice and reschedule others": Attack(
        """\
before = os.getpriority(os.PRIO_PROCESS, 0)
attempt(os.setpriority, os.PRIO_PROCESS, target['pid'], 19)
attempt(os.setpriority, os.PRIO_PROCESS, 0, before - 5)
attempt(os.setpriority, os.PRIO_PROCESS, os.getppid() or target['pid'], 19) if os.getppid() else 0
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attempt(os.sched_setscheduler, 0, policy, os.sched_param(1))
held()
""",
    ),
    "lock memory": Attack(
        """\
for flags in (1, 2, 3, 4):
    if libc.mlockall(flags) == 0: escaped(flags)
held() if libc.mlock(ctypes.create_string_buffer(1 << 20), 1 << 20) else escaped('mlock')
""",
    ),
    "pass file descriptors through sockets without end": Attack(
        """\
import array
kept = 0
try:
    while True:
        a, b = socket.socketpair()
        for _ in range(200):
            a.setblocking(False)
            rights = array.array('i', [a.fileno()] * 50)
            a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]); kept += 50
        a.detach(); b.detach()
except OSError: pass
held() if kept < 20_000 else escaped(kept)
""",
        times=2,
    ),
    "keep data in attributes of files": Attack(
        """\
written = 0
try:
    for name in range(10_000):
        path = f'/tmp/{name}'
        open(path, 'w').close()
        for i in range(64):
            os.setxattr(path, f'user.{i}', bytes(60_000)); written += 60_000
except OSError: pass
held() if written < 32 << 20 else escaped(written)
""",
        times=2,
    ),
    "watch the output": Attack(
        """\
for number in (253, 254, 294, 300, 301):  # inotify and fanotify
    attempt(syscall, number, 0, 0, 0, 0)
import fcntl
for command, value in ((1024, 0), (1024, 1), (1026, 0x8000000f)):  # F_SETLEASE, F_NOTIFY
    for number in (0, 1):
        attempt(fcntl.fcntl, number, command, value)
held()
""",
        statuses=("ok", "error"),
    ),
    "seal the output or the input": Attack(
        """\
import fcntl
for number in (0, 1):
    attempt(fcntl.fcntl, number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
attempt(os.ftruncate, 0, 0); attempt(os.pwrite, 0, b'forged', 0); held()
""",
    ),
    "write what cannot be decoded": Attack(
        """\
sys.stdout.write('\\ud800'); sys.stdout.flush()
""",
        statuses=("error",),
    ),
    "write at a distance": Attack(
        """\
try: os.pwrite(1, b'x', 1 << 40)
except OSError: pass
os.lseek(1, 0, os.SEEK_SET); held()
""",
        statuses=("ok", "error"),
    ),
    "nest values and calls without end": Attack(
        """\
sys.setrecursionlimit(1 << 30)
value = []
for _ in range(10 ** 6): value = [value]
str(value)
""",
        statuses=("ok", *STOPPED),
        seconds=2,
    ),
    "use up timers": Attack(
        """\
made = 0
handle = ctypes.c_void_p()
while libc.timer_create(0, None, ctypes.byref(handle)) == 0 and made < 10_000: made += 1
held() if made < 1000 else escaped(made)
""",
    ),
    "map files over the limit": Attack(
        """\
import mmap
with open('/tmp/x', 'w+b') as file:
    attempt(lambda: file.truncate(1 << 33))
    file.truncate(4 << 20)
    view = mmap.mmap(file.fileno(), 4 << 20)
total = 0
try:
    for number in range(64):
        with open(f'/tmp/{number}', 'w+b') as file:
            file.truncate(4 << 20)
            view = mmap.mmap(file.fileno(), 4 << 20)
            view[:] = bytes(4 << 20); total += 4 << 20
except OSError: pass
held() if total <= 16 << 20 else escaped(total)
""",
        statuses=("ok", "error"),
    ),
}
