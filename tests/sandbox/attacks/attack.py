"""What an attack is, and what the programs in this folder are given.

Each reads a JSON object on standard input: ``marker``, a file of the host; ``folder``, where it
lies; ``pid`` and ``port``, a process of the host and a port on which it listens; ``unix``, a socket
file of the host; ``variable``, an environment variable of the host. One that gets what it wants
prints ESCAPED; one that is held back in every way it knows prints ``held`` at its end.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    """One program and how it has to end.

    Attributes:
        program: Source; the preamble below is put before it.
        statuses: How it may end; with ``ok`` it has to print ``held`` and nothing else.
        times: How often it runs, one after the other on the same worker.
        seconds: Deadline of a test.
        escapes_unprotected: Whether it works, and harms nothing, in an ordinary process.
    """

    program: str
    statuses: tuple[str, ...] = ("ok",)
    times: int = 1
    seconds: float = 0.7
    escapes_unprotected: bool = False


PREAMBLE = """
import ctypes, errno, json, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
target = json.load(sys.stdin)
def escaped(how=""):
    os.write(1, b"ESCAPED " + str(how).encode())
    os._exit(0)
def attempt(action, *arguments):
    try:
        result = action(*arguments)
    except (OSError, ValueError, RuntimeError, ImportError, OverflowError, MemoryError):
        return
    escaped(result)
def syscall(*arguments):
    if libc.syscall(*[ctypes.c_long(a) for a in arguments]) == -1:
        raise OSError(ctypes.get_errno(), "refused")
def held():
    print("held")
"""

STOPPED = ("error", "timeout")
