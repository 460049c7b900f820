"""One warm worker process: started, asked to run a test, ended."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import tempfile
from typing import Any, cast

from vpo_lightning.sandbox.backends import Launch
from vpo_lightning.sandbox.results import Outcome, Status, WorkerLostError

_START_SECONDS = 20.0
_GRACE_SECONDS = 1.0  # the worker ends a test at its deadline; this much later we end the worker
_CLOSE_SECONDS = 0.3
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Worker:
    """The parent's end of a worker process.

    The thread that creates it must live as long as it: the process ends with that thread, and so
    also when this process is killed.

    Raises:
        WorkerLostError: The process ended or did not answer; the text is what it wrote on standard
            error.
    """

    def __init__(self, launch: Launch) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                launch.command,
                env=launch.environment,
                stdin=theirs.fileno(),
                stdout=self._errors,
                stderr=self._errors,
                start_new_session=True,
            )
        try:
            self._receive(_START_SECONDS)
        except WorkerLostError:
            self.close()
            raise

    def run(
        self, program: SealedFile, stdin: bytes, seconds: float, function: str | None
    ) -> Outcome:
        """The outcome of one test; returns within `seconds` and one more.

        Args:
            program: The source.
            stdin: The test's input.
            seconds: Deadline.
            function: Name of the function to call, None for a program.

        Raises:
            WorkerLostError: The worker is of no use any more; close it.
        """
        output = os.memfd_create("stdout", os.MFD_CLOEXEC)
        source = SealedFile(stdin)
        try:
            request = json.dumps({"seconds": seconds, "function": function}).encode()
            files = array.array("i", [program.number, source.number, output])
            try:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
                self._control.sendmsg([request], rights)
            except OSError as error:
                raise WorkerLostError(f"cannot reach the worker: {error}") from error
            answer = self._receive(seconds + _GRACE_SECONDS)
            status = cast(Status, answer["status"])
            stdout = os.pread(output, os.fstat(output).st_size, 0) if status == "ok" else b""
            return Outcome(status, stdout, answer["seconds"])
        finally:
            os.close(output)

    def close(self) -> None:
        """Ends the process and everything it started."""
        self._control.close()  # an idle worker ends by itself then, and no orphan is left to reap
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_CLOSE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()

    def _receive(self, seconds: float) -> dict[str, Any]:
        self._control.settimeout(seconds)
        try:
            message = self._control.recv(4096)
        except TimeoutError as error:
            raise WorkerLostError(f"no answer within {seconds:.0f} s", is_hung=True) from error
        except OSError as error:
            raise WorkerLostError(f"the connection broke: {error}") from error
        if not message:
            raise WorkerLostError(self._last_words())
        return json.loads(message)

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the worker ended with status {self._process.returncode}"


class SealedFile:
    """A file in memory that nobody can change any more; it goes with the last reference to it."""

    def __init__(self, content: bytes) -> None:
        """Writes `content` and goes back to its beginning."""
        self.number = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        view = memoryview(content)
        while view:
            view = view[os.write(self.number, view) :]
        fcntl.fcntl(self.number, fcntl.F_ADD_SEALS, _SEALS)
        os.lseek(self.number, 0, os.SEEK_SET)

    def __del__(self) -> None:
        os.close(self.number)
