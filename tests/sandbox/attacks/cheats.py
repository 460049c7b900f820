"""Programs that try to forge a verdict or to reach later tests."""

from tests.sandbox.attacks.attack import Attack

CHEATS = {
    "exit before any output": Attack(
        """\
sys.exit(0)
""",
        statuses=("silent",),
    ),
    "exit at once": Attack(
        """\
os._exit(0)
""",
        statuses=("silent",),
    ),
    "forge the server's answer on every file descriptor": Attack(
        """\
for number in range(3, 1024):
    attempt(os.write, number, b'{"status": "ok", "seconds": 0.0}')
    attempt(os.fstat, number)
held()
""",
    ),
    "send the server files": Attack(
        """\
for number in range(3, 64):
    attempt(lambda: socket.socket(fileno=number).send(b'{"ready": true}'))
held()
""",
    ),
    "patch the code that runs it": Attack(
        """\
import vpo_lightning.sandbox.inside.program as program
import vpo_lightning.sandbox.inside.server as server
if hasattr(program, 'changed'): escaped()
program.changed = 1
program.run = lambda *a: 0
program._execute = program._call = lambda *a: print('ESCAPED')
server._Server._test = lambda self, *a: {'status': 'ok', 'seconds': 0.0}
held()
""",
        times=3,
    ),
    "patch the frames above": Attack(
        """\
frame = sys._getframe()
while frame:
    frame.f_globals['changed'] = 1
    for name, value in list(frame.f_locals.items()):
        if hasattr(value, '_control'):
            attempt(value._control.send, b'{"status": "ok", "seconds": 0.0}')
    frame = frame.f_back
held()
""",
        times=2,
    ),
    "change modules for later tests": Attack(
        """\
import builtins, math
if hasattr(math, 'changed') or hasattr(builtins, 'changed') or 'CHANGED' in os.environ:
    escaped()
math.changed = builtins.changed = 1
os.environ['CHANGED'] = '1'; os.umask(0o777); os.nice(19)
builtins.open = builtins.input = None; sys.modules.clear(); sys.stdout.write('held\\n')
""",
        times=3,
    ),
    "leave files for later tests": Attack(
        """\
if os.listdir('/tmp'): escaped()
open('/tmp/left', 'w').write('x'); os.chmod('/tmp', 0); held()
""",
        times=3,
    ),
    "leave locks and timers for later tests": Attack(
        """\
import fcntl
with open(os.__file__) as file:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    held(); sys.stdout.flush(); os._exit(0)
""",
        times=3,
    ),
    "change the input for later tests": Attack(
        """\
attempt(os.write, 0, b'x'); attempt(os.ftruncate, 0, 0); attempt(os.pwrite, 0, b'x', 0)
attempt(lambda: __import__('mmap').mmap(0, 1)); os.lseek(0, 0, 2); os.close(0); held()
""",
        times=3,
    ),
    "find secrets of earlier tests in memory": Attack(
        """\
import gc
needle = 'TSET-REILRAE-NA-FO-TERCES'[::-1]
for thing in gc.get_objects():
    if thing is globals() or type(thing) not in (dict, list, tuple): continue
    for value in list(thing.values() if isinstance(thing, dict) else thing):
        if type(value) in (str, bytes) and needle in str(value) and value is not needle:
            escaped(value)
libc.sbrk.restype = ctypes.c_void_p
end = libc.sbrk(0)
heap = ctypes.string_at(end - (1 << 20), 1 << 20)
# the needle itself, and its copy as bytes
held() if heap.count(needle.encode()) <= 2 else escaped()
""",
    ),
}
