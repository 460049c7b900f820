"""An application served in a thread of this process, on a free port of the loopback interface."""

from __future__ import annotations

import threading
import time

import uvicorn
from starlette.applications import Starlette

_START_SECONDS = 20.0


class LoopbackServer:
    """A context manager that serves while it is open.

    Args:
        app: The application.

    Attributes:
        url: ``http://127.0.0.1:port``.
    """

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app, "127.0.0.1", 0, log_level="warning", timeout_graceful_shutdown=5
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, name="vpo-server", daemon=True)
        self.url = ""

    def __enter__(self) -> LoopbackServer:
        """Starts the server.

        Raises:
            RuntimeError: It does not start.
        """
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError("the loopback server did not start")
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *details: object) -> None:
        self._server.should_exit = True
        self._thread.join(_START_SECONDS)
