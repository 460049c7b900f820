"""Programs that try to read or write what lies outside their own folder."""

from tests.sandbox.attacks.attack import Attack

FILES = {
    "read a file of the host": Attack(
        """\
attempt(lambda: open(target['marker']).read()); held()
""",
        escapes_unprotected=True,
    ),
    "read it by a relative path": Attack(
        """\
attempt(lambda: open('../' * 30 + target['marker']).read()); held()
""",
        escapes_unprotected=True,
    ),
    "read it through a symbolic link": Attack(
        """\
os.symlink(target['marker'], '/tmp/vpo-attack-link')
attempt(lambda: open('/tmp/vpo-attack-link').read()); held()
""",
    ),
    "read it through a hard link": Attack(
        """\
attempt(os.link, target['marker'], '/tmp/vpo-attack-hard'); held()
""",
    ),
    "read the accounts of the host": Attack(
        """\
for name in ('/etc/passwd', '/etc/shadow', '/etc/hostname', '/etc/resolv.conf'):
    attempt(lambda: open(name).read())
held()
""",
        escapes_unprotected=True,
    ),
    "list home and work folders": Attack(
        """\
for name in (target['folder'], '/home', '/work', '/srv', '/mnt', '/var', '/run', '/boot'):
    attempt(os.listdir, name)
held()
""",
        escapes_unprotected=True,
    ),
    "find the expected outputs": Attack(
        """\
for folder, _, files in os.walk('/'):
    for name in files:
        if name in ('problems.jsonl', 'livecodebench.json', 'config.yaml'):
            escaped(folder)
held()
""",
        seconds=20,
    ),
    "import the judge": Attack(
        """\
sys.path += [target['folder'], os.getcwd()]
def judge():
    import vpo_lightning.tasks
def installed():
    import torch
def scorer():
    import vpo_lightning.scoring
attempt(judge); attempt(installed); attempt(scorer); held()
""",
    ),
    "walk up through open folders": Attack(
        """\
for number in range(1024):
    attempt(os.fchdir, number)
    attempt(lambda: os.open(target['marker'].lstrip('/'), os.O_RDONLY, dir_fd=number))
held()
""",
    ),
    "write in every folder": Attack(
        """\
for folder, folders, _ in os.walk('/'):
    if folder == '/':
        folders.remove('tmp')
    attempt(lambda: open(os.path.join(folder, 'vpo-attack'), 'w'))
held()
""",
        seconds=20,
    ),
    "write beside the marker": Attack(
        """\
attempt(lambda: open(target['folder'] + '/vpo-attack', 'w')); held()
""",
        escapes_unprotected=True,
    ),
    "overwrite the interpreter and the server": Attack(
        """\
import vpo_lightning.sandbox.inside.server as server, heapq
for name in (server.__file__, heapq.__file__, os.__file__, sys.executable):
    attempt(lambda: open(name, 'r+b')); attempt(os.unlink, name)
    attempt(os.rename, name, name + '.bak'); attempt(os.truncate, name, 0)
held()
""",
    ),
    "change permissions of devices and libraries": Attack(
        """\
for name in ('/dev/null', '/dev/zero', os.__file__, '/usr', '/'):
    attempt(os.chmod, name, 0); attempt(os.chown, name, 12345, 12345)
    attempt(os.setxattr, name, 'user.x', b'1')
attempt(os.utime, os.__file__); attempt(os.utime, '/')
held()
""",
    ),
    "make a device file": Attack(
        """\
import stat
for kind in (stat.S_IFBLK, stat.S_IFCHR):
    attempt(os.mknod, '/tmp/device', kind | 0o600, os.makedev(8, 0))
held()
""",
    ),
    "open devices": Attack(
        """\
for name in ('mem', 'kmsg', 'sda', 'vda', 'tty', 'ptmx', 'console', 'fuse', 'kvm'):
    attempt(os.open, '/dev/' + name, os.O_RDWR)
attempt(lambda: open('/dev/shm/x', 'w')); held()
""",
    ),
    "change the root": Attack(
        """\
os.mkdir('/tmp/root'); attempt(os.chroot, '/tmp/root'); attempt(syscall, 155, 0, 0); held()
""",
    ),
    "mount a file system": Attack(
        """\
for kind in (b'tmpfs', b'proc', b'sysfs', b'overlay'):
    attempt(lambda: syscall(165, *[ctypes.addressof(ctypes.create_string_buffer(x))
                                    for x in (b'x', b'/tmp', kind)], 0, 0))
libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0 and escaped()
libc.umount2(b'/tmp', 2) == 0 and escaped(); libc.umount2(b'/proc', 2) == 0 and escaped()
held()
""",
    ),
    "open a file by its handle": Attack(
        """\
handle = ctypes.create_string_buffer(struct.pack('Ii', 8, 1) + struct.pack('II', 2, 0), 136)
result = libc.open_by_handle_at(1, handle, 0)
escaped() if result >= 0 else held()
""",
    ),
}
