"""Serves a report on this machine only, and makes it anew while its runs go on."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vpo_lightning.errors import ConfigError

ADDRESS = "127.0.0.1"
_WATCHED = ("metrics.jsonl", "summary.json", "eval.json", "result.json")
_REST = 5.0  # times what building a page took passes before the next one is built


class LivePage:
    """The newest page of some runs; rebuilt when their files have changed, but not too often.

    Args:
        folders: Where the runs are.
        build: Makes the page.
    """

    def __init__(self, folders: Sequence[Path], build: Callable[[], str]) -> None:
        self._folders = folders
        self._build = build
        self._lock = threading.Lock()
        self._text = ""
        self._version = ""
        self._not_before = 0.0

    def newest(self) -> tuple[str, str]:
        """The page and its version."""
        with self._lock:
            version = self._files_version()
            if version != self._version and time.monotonic() >= self._not_before:
                start = time.monotonic()
                self._text = self._build()
                self._version = version
                self._not_before = time.monotonic() + _REST * (time.monotonic() - start)
            return self._text, self._version

    def _files_version(self) -> str:
        """A word that changes with the files' sizes and times."""
        stamps: list[tuple[str, int, int]] = []
        for folder in self._folders:
            for pattern in _WATCHED:
                for path in sorted(folder.rglob(pattern)):
                    try:
                        state = path.stat()
                    except FileNotFoundError:  # renamed while we look
                        continue
                    stamps.append((str(path), state.st_size, state.st_mtime_ns))
        return f"{hash(tuple(stamps)) & (2**64 - 1):x}"


def serve(folders: Sequence[Path], build: Callable[[], str], port: int) -> int:
    """Serves until Ctrl-C; returns the exit status."""
    page = LivePage(folders, build)
    server = make_server(page, port)
    print(f"http://{ADDRESS}:{server.server_port}/  (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(file=sys.stderr)
    finally:
        server.server_close()
    return 0


def make_server(page: LivePage, port: int) -> ThreadingHTTPServer:
    """A server on the loopback address that knows two paths: the page and its version.

    It maps no path to a file, and refuses requests that name another host, which is how a page
    elsewhere would reach it through the reader's browser.

    Raises:
        OSError: The port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        server_version = "vpo-report"
        sys_version = ""

        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rsplit(":", 1)
            if host[0] not in (ADDRESS, "localhost") or host[1:] != [str(server.server_port)]:
                self._send(403, "text/plain", "this server is for this machine's own browser\n")
            elif self.path in ("/", "/version"):
                self._answer()
            else:
                self._send(404, "text/plain", "there is / and /version\n")

        def _answer(self) -> None:
            try:
                text, version = page.newest()
            except ConfigError as error:  # the folder has gone since
                self._send(503, "text/plain", f"{error}\n")
                return
            if self.path == "/":
                self._send(200, "text/html", text)
            else:
                self._send(200, "text/plain", version)

        def _send(self, status: int, kind: str, text: str) -> None:
            body = text.encode("utf-8", "replace")
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("X-Frame-Options", "DENY")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing about requests."""

    server = ThreadingHTTPServer((ADDRESS, port), Handler)
    return server
