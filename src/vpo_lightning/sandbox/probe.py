"""Tries to get out of a worker before anything depends on it."""

from __future__ import annotations

import json

from vpo_lightning import errors
from vpo_lightning.errors import ConfigError
from vpo_lightning.sandbox.backends import Launch
from vpo_lightning.sandbox.results import WorkerLostError
from vpo_lightning.sandbox.worker import SealedFile, Worker

_REMEDY = (
    "Isolation needs Linux 5.14 or newer and user namespaces: in a container, start it with "
    "permission to make them (docker run --security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined --security-opt systempaths=unconfined --cap-add SYS_ADMIN); on Ubuntu set "
    "kernel.apparmor_restrict_unprivileged_userns=0. task.sandbox.backend=guard runs programs of "
    "the model without isolation"
)

# Prints what it could do and should not, and what it could not do and should.
_PROBE = """
def attempt(action):
    try:
        action()
    except OSError:
        return False
    return True

import ctypes, socket, threading
done = []
host_file = input()
forbidden = {
    "read this package": lambda: open(host_file).close(),
    "read a file of the host": lambda: open("/etc/passwd").close(),
    "see processes": lambda: os.stat("/proc/self"),
    "start a process": lambda: os._exit(0) if os.fork() == 0 else None,
    "open a socket": lambda: socket.socket().close(),
    "write outside /tmp": lambda: open("/sandbox/x", "w").close(),
    "get a namespace": lambda: os.close(-1) if ctypes.CDLL(None).unshare(0x10000000) else None,
}
import os
wrong = ["it can " + name for name, action in forbidden.items() if attempt(action)]
def work():
    done.append(open("/tmp/x", "w").write("y"))
try:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
except RuntimeError:
    pass
if not done:
    wrong.append("it cannot start a thread or write to /tmp")
print(json.dumps(wrong))
"""


def check_isolation(launch: Launch) -> None:
    """Runs a program that tries to leave the sandbox; returns if it cannot.

    Raises:
        ConfigError: The worker does not start, or the program got out.
    """
    try:
        worker = Worker(launch)
        try:
            stdin = f"{errors.__file__}\n".encode()
            outcome = worker.run(SealedFile(_PROBE.encode()), stdin, 10.0, None)
        finally:
            worker.close()
    except (OSError, WorkerLostError) as error:
        raise ConfigError(
            f"task.sandbox.backend=bubblewrap cannot isolate here: {error}. {_REMEDY}"
        ) from error
    if outcome.status != "ok":
        raise ConfigError(
            f"task.sandbox.backend=bubblewrap cannot isolate here: the trial program ended with "
            f"{outcome.status}. {_REMEDY}"
        )
    wrong = json.loads(outcome.stdout)
    if wrong:
        raise ConfigError(
            f"task.sandbox.backend=bubblewrap does not isolate here: {'; '.join(wrong)}. {_REMEDY}"
        )
