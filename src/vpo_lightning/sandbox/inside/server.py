"""The warm process of a slot: forks one child for every test and tells how each one ended.

It answers one request at a time on a socket. A request names the deadline and, for a functional
test, the function; with it come three files: the program, its input, and where its output goes.
Their contents never pass through this process, so that nothing of an earlier test is in the memory
that a later one inherits. All it reports is an exit status.
"""

from __future__ import annotations

import array
import gc
import json
import os
import select
import signal
import socket
import sys
import time

from vpo_lightning.sandbox.inside import program
from vpo_lightning.sandbox.inside.confinement import Guard, Isolation, Limits

_MAX_REQUEST = 4096
_NUM_FILES = 3


def main(settings: str) -> None:
    """Serves the socket that is standard input until the other end closes it.

    Args:
        settings: JSON: is_isolated, limits (see `Limits`), packages (a folder or null).
    """
    parsed = json.loads(settings)
    limits = Limits(**parsed["limits"])
    confinement = Isolation(limits) if parsed["is_isolated"] else Guard(limits)
    confinement.enter()
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    if parsed["packages"]:
        sys.path.append(parsed["packages"])
    program.warm_up()
    gc.freeze()  # children leave these objects alone, so that their pages stay shared
    os.close(null)
    _Server(control, confinement).run()


class _Server:
    def __init__(self, control: socket.socket, confinement: Isolation | Guard) -> None:
        self._control = control
        self._confinement = confinement
        self._broken = os.eventfd(0, os.EFD_NONBLOCK)  # set by a child that could not be confined

    def run(self) -> None:
        self._reply({"ready": True})
        while True:
            request, files = self._receive()
            if not request:
                return
            self._reply(self._test(json.loads(request), files))
            for file in files:
                os.close(file)

    def _test(self, request: dict[str, object], files: list[int]) -> dict[str, object]:
        seconds = float(str(request["seconds"]))
        function = request["function"]
        started = time.monotonic()
        pid = self._confinement.fork()
        if pid == 0:
            self._child(files, seconds, None if function is None else str(function))
        is_late = not self._wait(pid, seconds)
        if is_late:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._confinement.clean(pid)
        elapsed = time.monotonic() - started
        if self._is_broken():
            return {"status": "lost", "seconds": elapsed}
        if is_late or status == -signal.SIGXCPU:
            return {"status": "timeout", "seconds": elapsed}
        return {"status": "error" if status else "ok", "seconds": elapsed}

    def _child(self, files: list[int], seconds: float, function: str | None) -> None:
        """Runs the program and ends the process; returns never."""
        try:
            source_file, input_file, output_file = files
            source = os.pread(source_file, os.fstat(source_file).st_size, 0)
            os.dup2(input_file, 0)
            os.dup2(output_file, 1)
            os.dup2(os.open("/dev/null", os.O_RDWR), 2)  # its own: a lock on it ends with the test
            self._confinement.confine(seconds)
        except BaseException:
            os.eventfd_write(self._broken, 1)
            os._exit(1)
        os.closerange(3, 1 << 20)
        try:
            os._exit(program.run(source, function))
        finally:
            os._exit(1)

    def _wait(self, pid: int, seconds: float) -> bool:
        """Whether the process ended in time."""
        end = os.pidfd_open(pid)
        try:
            return bool(select.select([end], [], [], seconds)[0])
        finally:
            os.close(end)

    def _is_broken(self) -> bool:
        try:
            return bool(os.eventfd_read(self._broken))
        except BlockingIOError:
            return False

    def _receive(self) -> tuple[bytes, list[int]]:
        message, data, _, _ = self._control.recvmsg(
            _MAX_REQUEST, socket.CMSG_SPACE(_NUM_FILES * array.array("i").itemsize)
        )
        files = array.array("i")
        for _level, _kind, content in data:
            files.frombytes(content[: len(content) - len(content) % files.itemsize])
        return message, list(files)

    def _reply(self, answer: dict[str, object]) -> None:
        self._control.send(json.dumps(answer).encode())
