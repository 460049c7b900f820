"""Programs that try to make, see, end or become other processes, or to get rights."""

from tests.sandbox.attacks.attack import Attack

PROCESSES = {
    "fork": Attack(
        """\
def fork():
    if os.fork() == 0: os._exit(0)
attempt(fork); held()
""",
        escapes_unprotected=True,
    ),
    "a fork bomb": Attack(
        """\
while True:
    try: os.fork()
    except OSError: break
    escaped()
held()
""",
    ),
    "start another program": Attack(
        """\
import subprocess
attempt(lambda: subprocess.run([sys.executable, '-c', '']))
attempt(lambda: os.posix_spawn(sys.executable, ['x', '-c', ''], {}))
attempt(lambda: os.execv(sys.executable, ['x', '-c', 'print("ESCAPED")']))
attempt(lambda: os.execv('/lib64/ld-linux-x86-64.so.2', ['x'])); held()
""",
    ),
    "fork by other system calls": Attack(
        """\
for number in (57, 58):
    pid = libc.syscall(number)
    if pid == 0: os._exit(0)
    if pid > 0: escaped(number)
pid = libc.syscall(56, signal.SIGCHLD, 0, 0, 0, 0)
if pid == 0: os._exit(0)
if pid > 0: escaped('clone')
arguments = ctypes.create_string_buffer(struct.pack('QQQQQQQQ', 0, 0, 0, 0, 17, 0, 0, 0))
pid = libc.syscall(435, arguments, 64)
if pid == 0: os._exit(0)
escaped('clone3') if pid > 0 else held()
""",
    ),
    "fork by the old system calls": Attack(
        """\
libc.syscall(0x40000000 | 57); escaped()
""",
        statuses=("error",),
    ),
    "use a pool of processes": Attack(
        """\
import multiprocessing
def pool():
    with multiprocessing.Pool(2) as p: return p.map(abs, [1])
attempt(pool); held()
""",
    ),
    "leave a daemon behind": Attack(
        """\
try:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: time.sleep(1)
        os._exit(0)
    escaped()
except OSError: held()
""",
    ),
    "leave a thread behind": Attack(
        """\
import threading
threading.Thread(target=lambda: time.sleep(1000), daemon=True).start(); held()
""",
    ),
    "leave a thread behind that is waited for": Attack(
        """\
import threading
threading.Thread(target=lambda: time.sleep(1000)).start(); held()
""",
        statuses=("timeout",),
    ),
    "kill everything": Attack(
        """\
for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP):
    attempt(os.kill, -1, number)
held()
""",
    ),
    "kill the parent": Attack(
        """\
for pid in [os.getppid(), target['pid'], *range(2, 3000)]:
    if pid > 1:
        attempt(os.kill, pid, signal.SIGKILL)
held()
""",
    ),
    "kill the own group": Attack(
        """\
os.killpg(0, signal.SIGKILL); os.kill(0, signal.SIGKILL); held()
""",
    ),
    "stop the parent": Attack(
        """\
for pid in [target['pid'], *range(2, 3000)]:
    attempt(os.kill, pid, signal.SIGSTOP)
held()
""",
    ),
    "trace the parent": Attack(
        """\
for pid in [target['pid'], os.getppid(), *range(300)]:
    if libc.ptrace(16, pid, 0, 0) == 0 or libc.ptrace(0x4206, pid, 0, 0) == 0:
        escaped(pid)
held()
""",
    ),
    "be traced": Attack(
        """\
escaped() if libc.ptrace(0, 0, 0, 0) == 0 else held()
""",
    ),
    "read memory of other processes": Attack(
        """\
buffer = ctypes.create_string_buffer(64)
part = struct.pack('PN', ctypes.addressof(buffer), 64)
vector = ctypes.create_string_buffer(part)
for pid in [target['pid'], *range(300)]:
    if libc.process_vm_readv(pid, vector, 1, vector, 1, 0) > 0: escaped(pid)
held()
""",
    ),
    "take file descriptors of other processes": Attack(
        """\
for pid in [target['pid'], 1, 2, 3]:
    attempt(syscall, 434, pid, 0)
    attempt(syscall, 438, 3, 0, 0)
held()
""",
    ),
    "look at processes": Attack(
        """\
for name in ('self/status', '1/environ', '2/mem', 'self/fd/1', f'{os.getppid()}/maps',
             f'{target["pid"]}/environ', 'version', 'self/mountinfo', 'net/tcp'):
    attempt(lambda: open('/proc/' + name, 'rb').read(1))
escaped() if os.listdir('/proc') else held()
""",
        escapes_unprotected=True,
    ),
    "write to the kernel's settings": Attack(
        """\
for name in ('/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/self/mem',
             '/proc/self/uid_map', '/proc/self/oom_score_adj', '/sys/power/state'):
    attempt(lambda: open(name, 'r+b'))
held()
""",
    ),
    "get new namespaces": Attack(
        """\
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x4000000, 0x8000000):
    libc.unshare(flag) == 0 and escaped(flag)
    libc.unshare(flag | 0x10000000) == 0 and escaped(flag)
held()
""",
    ),
    "enter namespaces by open files": Attack(
        """\
for number in range(1024):
    libc.setns(number, 0) == 0 and escaped(number)
held()
""",
    ),
    "become root": Attack(
        """\
for action in (os.setuid, os.setgid, os.seteuid, os.setegid):
    attempt(action, 0)
attempt(os.setgroups, [0]); attempt(os.setresuid, 0, 0, 0)
header = ctypes.create_string_buffer(struct.pack('Ii', 0x20080522, 0))
data = ctypes.create_string_buffer(struct.pack('IIIIII', *[0xffffffff] * 6))
escaped('capset') if libc.capset(header, data) == 0 else held()
""",
    ),
    "raise the limits": Attack(
        """\
import resource
for kind in ('NPROC', 'AS', 'FSIZE', 'NOFILE', 'CPU', 'CORE', 'STACK', 'MSGQUEUE'):
    attempt(resource.setrlimit, getattr(resource, 'RLIMIT_' + kind), (-1, -1))
for pid in (target['pid'], 2, 3):
    attempt(resource.prlimit, pid, resource.RLIMIT_CPU, (1, 1))
held()
""",
    ),
    "take all processors": Attack(
        """\
attempt(os.sched_setaffinity, 0, {0}); held()
""",
    ),
    "use rare parts of the kernel": Attack(
        """\
# memfd_secret, bpf, userfaultfd, perf_event_open, io_uring_setup, keyctl, add_key, kexec
for number in (447, 321, 323, 298, 425, 250, 248, 246, 313, 175, 169, 167, 303, 227, 170,
               162, 172, 173, 154, 135):
    libc.syscall(number, 0, 0, 0, 0, 0) >= 0 and escaped(number)
held()
""",
    ),
}
