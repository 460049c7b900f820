"""A stand-in for the HTTP side of vLLM servers, for faults that a real one does not show on demand.

It answers the calls that `vllm_server_http` makes in the shapes of vLLM 0.32.0, as
`test_vllm_server` sees them from a real server.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeServer:
    """A server whose completions are its prompt's first token, the request's seed, and an end.

    Attributes:
        version: Of the weights it says it has.
        calls: How often each path was called.
        seeds: Of the completions it gave.
        fail: Paths with the status and text to answer instead.
        slow: Paths with seconds to wait before the answer.
        drop: Completions whose connection is closed without an answer.
    """

    def __init__(self, port: int = 0) -> None:
        self.version = "default"
        self.calls: Counter[str] = Counter()
        self.seeds: list[int] = []
        self.fail: dict[str, tuple[int, str]] = {}
        self.slow: dict[str, float] = {}
        self.drop = 0
        self.files: list[str] = []
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                fake._connections.append(self.connection)

            def do_GET(self) -> None:
                fake._answer(self, {})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                fake._answer(self, json.loads(self.rfile.read(length) or b"{}"))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that gave up waiting

        self._http = Server(("127.0.0.1", port), Handler)
        self.port = int(self._http.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Cuts all connections and refuses new ones, as when the process is killed."""
        self._http.shutdown()
        self._http.server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        path = handler.path.partition("?")[0]
        with self._lock:
            self.calls[path] += 1
            drops = path == "/inference/v1/generate" and self.drop > 0
            self.drop -= drops
        time.sleep(self.slow.get(path, 0.0))
        if drops:
            handler.close_connection = True
            return
        status, content = 200, self._content(path, body)
        if path in self.fail:
            status, text = self.fail[path]
            content = {"error": {"message": text}}
        data = json.dumps(content).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection |= status >= 500  # as vLLM does after an internal error

    def _content(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/weight_info":
            return {"weight_version": self.version}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/update_weights":
            self.files += body["update_info"]["names"]
        if path == "/collective_rpc":
            settings = {"dtype": "float32", "logprobs_mode": "processed_logprobs"}
            return {"results": [{**settings, "weight_transfer": "files", "max_model_len": 64}]}
        if path == "/inference/v1/generate":
            return self._completion(body)
        return {"success": True}

    def _completion(self, body: dict[str, Any]) -> dict[str, Any]:
        seed = body["sampling_params"]["seed"]
        with self._lock:
            self.seeds.append(seed)
        ids = [body["token_ids"][0], seed, 1]
        choice = {
            "finish_reason": "stop",
            "token_ids": ids,
            "logprobs": {"content": [{"token_id": i, "logprob": -0.5} for i in ids]},
            "weight_versions": [{"version": self.version, "start": 0, "end": 3}],
        }
        return {"choices": [choice]}
