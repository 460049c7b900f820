"""The system calls a tested program may not make, as a seccomp filter.

Namespaces decide what a program can see; the filter keeps it from making other processes (threads
are allowed), from the parts of the kernel that no exercise needs, and from memory that the limits
of a process do not count. Numbers are those of the kernel's system call tables.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_CLONE_THREAD = 0x00010000
_X32_BIT = 0x40000000

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_EPERM = 0x00050000 | errno.EPERM
_ENOSYS = 0x00050000 | errno.ENOSYS

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data

# name: (x86_64, aarch64); None where the architecture does not have it
_DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes and programs
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # the network
    "socket": (41, 198),
    # memory and state outside the limits of the process
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # the machine
    "sync": (162, 81),
    "syncfs": (306, 267),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_setup": (206, 0),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "sched_setaffinity": (203, 122),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "ioperm": (173, None),
    "iopl": (172, None),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "acct": (163, 89),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
}
_CLONE = (56, 220)
_PRCTL, _SET_DUMPABLE = (157, 167), 4  # a process that can be dumped starts the host's handler
_UNKNOWN = 470  # calls of kernels that are newer than this table
_CLONE3 = 435  # its flags lie in memory where a filter cannot look; the C library then uses clone
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


class Filter:
    """A filter ready to be installed, with as little work as possible in a freshly forked child.

    Raises:
        OSError: The machine's architecture has no table here.
    """

    def __init__(self) -> None:
        machine = os.uname().machine
        if machine not in _ARCHITECTURES:
            raise OSError(
                errno.ENOTSUP,
                f"no seccomp filter for {machine}, only for {' and '.join(_ARCHITECTURES)}",
            )
        code = _program(*_ARCHITECTURES[machine])
        self._code = ctypes.create_string_buffer(code, len(code))
        address = ctypes.addressof(self._code)
        self._header = ctypes.create_string_buffer(struct.pack("@HP", len(code) // 8, address))
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._arguments = (
            ctypes.c_int(22),  # PR_SET_SECCOMP
            ctypes.c_ulong(2),  # SECCOMP_MODE_FILTER
            ctypes.c_void_p(ctypes.addressof(self._header)),
        )

    def install(self) -> None:
        """Puts the filter on this process, for good; needs no_new_privs.

        Raises:
            OSError: The kernel refuses.
        """
        if self._prctl(*self._arguments):
            raise OSError(ctypes.get_errno(), "seccomp")


def _program(column: int, architecture: int) -> bytes:
    """The filter as the kernel's struct sock_filter[]."""
    denied = sorted(n for n in (pair[column] for pair in _DENIED.values()) if n is not None)
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if column == 0:
        lines += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL_PROCESS)]
    lines += [(_AT_LEAST, 0, 1, _UNKNOWN), (_RETURN, 0, 0, _ENOSYS)]
    for number in denied:
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    lines += [
        (_EQUAL, 0, 4, _PRCTL[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 0, 1, _SET_DUMPABLE),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ENOSYS),
        (_EQUAL, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("@HBBI", *line) for line in lines)
