"""A real HTTP server on this machine that answers as a test wants, well or not."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """Answers each request by the next of `replies` (the last one for ever), and keeps them all."""

    def __init__(self, *replies: Reply) -> None:
        self.replies: list[Reply] = list(replies)
        self.requests: list[tuple[str, dict[str, Any], str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append((self.path, body, self.headers["Authorization"]))
                reply = server.replies[min(len(server.requests), len(server.replies)) - 1]
                reply(self)

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/v1"
        threading.Thread(target=self.http.serve_forever, args=[0.01], daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


def send(payload: Any, status: int = 200) -> Reply:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return reply


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        try:
            handler.wfile.write(b" ")
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.05)


def drip_headers(handler: BaseHTTPRequestHandler) -> None:
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 90:
        try:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
        except OSError:
            return
        time.sleep(0.05)


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{")
    handler.close_connection = True


def babble(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\xff nonsense\r\n\r\n")
    handler.close_connection = True


def pour(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        for _ in range(64):
            handler.wfile.write(b" " * (1 << 20))
    except OSError:
        return
