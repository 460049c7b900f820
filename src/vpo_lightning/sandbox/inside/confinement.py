"""What shuts in a test: namespaces of its own, no capabilities, limits, a system call filter.

`Isolation` is used by the fork server inside bubblewrap. It enters a user namespace of its own, in
which it may make further namespaces, and every test gets fresh ones: process ids (so that it sees
no other process, and all of its own end with it), mounts with an empty ``/tmp``, and System V IPC.
`Guard` has none of this: limits and the filter only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import struct
import tempfile
from dataclasses import dataclass

from vpo_lightning.sandbox.inside.seccomp import Filter

_NEW_MOUNTS, _NEW_CGROUP, _NEW_UTS = 0x00020000, 0x02000000, 0x04000000
_NEW_IPC, _NEW_USER, _NEW_PIDS = 0x08000000, 0x10000000, 0x20000000
_READ_ONLY_NO_EXEC, _NO_SUID_NO_DEV = 0xF, 0x6
_SET_DUMPABLE, _SET_NO_NEW_PRIVS = 4, 38
_NOBODY = 65534
_INSIDE_ID = 1000

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Limits:
    """What one test may use.

    Attributes:
        memory: Bytes of address space.
        threads: Threads beside the main one.
        file: Bytes in a file, the captured output included.
        tmp: Bytes in ``/tmp``.
    """

    memory: int
    threads: int
    file: int
    tmp: int

    def apply(self, seconds: float, processes: int | None) -> None:
        """Lowers the hard limits of this process, for good."""
        cpu = int(seconds) + 2
        limits = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_CPU: cpu,
            resource.RLIMIT_FSIZE: self.file,
            resource.RLIMIT_NOFILE: 64,
            resource.RLIMIT_MSGQUEUE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_SIGPENDING: 256,
            resource.RLIMIT_STACK: 64 << 20,
            resource.RLIMIT_AS: self.memory,
        }
        if processes is not None:
            limits[resource.RLIMIT_NPROC] = processes
        for kind, wanted in limits.items():
            hard = resource.getrlimit(kind)[1]
            value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (value, value))


class Guard:
    """Limits, a process group and the filter: stops accidents, hides nothing from an attacker."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._folder = ""
        try:
            self._filter: Filter | None = Filter()
        except OSError:
            self._filter = None

    def enter(self) -> None:
        """Nothing to prepare."""

    def fork(self) -> int:
        """Starts a process in a process group and folder of its own; 0 in the child."""
        self._folder = tempfile.mkdtemp(prefix="vpo-guard-")
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.chdir(self._folder)
        return pid

    def confine(self, seconds: float) -> None:
        """Called in the child, last before the program."""
        _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        self._limits.apply(seconds, processes=None)
        if self._filter is not None:
            self._filter.install()

    def clean(self, pid: int) -> None:
        """Called after the child has been reaped."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


class Isolation:
    """Namespaces for every test.

    The server is process 1 of its namespace and cannot be dumped; a test is process 1 of a
    namespace below it, in which the server has no number that a signal or a trace could name.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._filter = Filter()
        self._own_pids = -1
        self._tmp_options = b"mode=0755,size=%d,nr_inodes=1024" % limits.tmp
        # struct __user_cap_header_struct (version 3, this process) and two empty cap_data_structs
        self._no_capabilities = (
            ctypes.create_string_buffer(struct.pack("@Ii", 0x20080522, 0)),
            ctypes.create_string_buffer(24),
        )

    def enter(self) -> None:
        """Moves this process into namespaces that it owns; it returns in a child of the caller.

        Raises:
            OSError: The kernel refuses; the message says which step.
        """
        if os.getuid() == 0:  # root of the machine: bubblewrap made no user namespace
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        user, group = os.getuid(), os.getgid()
        flags = _NEW_USER | _NEW_MOUNTS | _NEW_PIDS | _NEW_IPC | _NEW_UTS | _NEW_CGROUP
        _check(_libc.unshare(flags), "a user namespace inside the sandbox")
        _check(_libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")  # else the maps are root's
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{_INSIDE_ID} {user} 1"),
            ("gid_map", f"{_INSIDE_ID} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        _check(_libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")
        pid = os.fork()
        if pid:  # the first process of the new namespace does the work; it ends when that ends
            os.closerange(0, 2)
            os.waitpid(pid, 0)
            os._exit(0)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._mount(b"/proc", _READ_ONLY_NO_EXEC, b"mode=0555,size=0,nr_inodes=2")

    def fork(self) -> int:
        """Starts process 1 of a new namespace; 0 in the child."""
        _check(_libc.unshare(_NEW_PIDS), "a process namespace")
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:  # the next child is to get a namespace of its own
                _check(_libc.setns(self._own_pids, _NEW_PIDS), "leaving a process namespace")
        if pid == 0:
            os.setsid()  # a signal to one's own group crosses namespaces
        return pid

    def confine(self, seconds: float) -> None:
        """Called in the child, last before the program.

        Raises:
            OSError: The kernel refuses.
        """
        _check(_libc.unshare(_NEW_MOUNTS | _NEW_IPC), "mount and IPC namespaces")
        self._mount(b"/tmp", _NO_SUID_NO_DEV, self._tmp_options)
        os.chdir("/tmp")
        _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        _check(_libc.capset(*self._no_capabilities), "dropping capabilities")
        # the server, the process that waits for it, and the test itself
        self._limits.apply(seconds, processes=self._limits.threads + 3)
        self._filter.install()

    def clean(self, pid: int) -> None:
        """Nothing is left: the test's processes and files ended with its namespaces."""

    def _mount(self, target: bytes, flags: int, options: bytes) -> None:
        _check(_libc.mount(b"tmpfs", target, b"tmpfs", flags, options), f"tmpfs {target.decode()}")


def _check(status: int, step: str) -> None:
    if status:
        code = ctypes.get_errno()
        raise OSError(code, f"{step}: {os.strerror(code)}")
