"""Fires parallel requests at vpo-serve, malformed ones among them, and watches its memory.

python scripts/soak_serve.py <policy> --seconds 120 --clients 16 --prompt "<a prompt of the policy>"
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

MALFORMED: list[tuple[bytes, int]] = [
    (b"", 400),
    (b"{", 400),
    (b"[1, 2]", 400),
    (b'{"messages": []}', 400),
    (b'{"messages": [{"role": "user"}]}', 400),
    (b'{"messages": [{"role": "nobody", "content": "x"}]}', 400),
    (b'{"messages": "hello"}', 400),
    (b"\xff\xfe\x00", 400),
    (b"[" * 100_000, 400),
    (b'{"\\ud800": 1}', 400),
    (b"x" * (2 << 20), 413),
]
MALFORMED_FIELDS: list[dict[str, Any]] = [
    {"n": 0},
    {"n": 10**6},
    {"n": "2"},
    {"max_tokens": -1},
    {"max_tokens": 10**7},
    {"temperature": "hot"},
    {"temperature": 99},
    {"top_p": 0},
    {"seed": 0.5},
    {"stop": [""]},
    {"stream": True},
    {"tools": [{}]},
    {"logprobs": "yes"},
    {"answers": 0},
    {"answers": 2, "stop": "x"},
    {"surprise": 1},
]


class Soak:
    """Clients of one server, and what it answered them.

    Args:
        port: Where it listens on the loopback interface.
        prompt: A prompt that the policy can read.
        seconds: How long the clients go on.
    """

    def __init__(self, port: int, prompt: str, seconds: float) -> None:
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []
        self._port = port
        self._prompt = prompt
        self._end = time.monotonic() + seconds

    def run(self, clients: int) -> None:
        """Lets that many clients ask until the time is over."""
        threads = [threading.Thread(target=self._client, args=(i,)) for i in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < self._end and len(self.faults) < 10:
            body, expected = self._request(rng)
            try:
                status, answer = ask(self._port, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.faults.append(f"{type(error).__name__}: {error} for {body[:80]!r}")
                continue
            self.statuses[status] += 1
            fault = _fault(status, answer, expected)
            if fault:
                self.faults.append(f"{fault} for {body[:80]!r}")

    def _request(self, rng: random.Random) -> tuple[bytes, int]:
        """A body and the status it deserves."""
        if rng.random() < 0.2:
            return rng.choice(MALFORMED)
        fields: dict[str, Any] = {"messages": [{"role": "user", "content": self._prompt}]}
        if rng.random() < 0.25:
            return json.dumps({**fields, **rng.choice(MALFORMED_FIELDS)}).encode(), 400
        fields |= {"n": rng.randint(1, 4), "max_tokens": rng.randint(1, 40)}
        fields |= {"seed": rng.randrange(100), "temperature": rng.choice([0, 0.7, 1.0])}
        fields |= rng.choice([{}, {"logprobs": True}, {"answers": 3}, {"stop": ["|", "r0"]}])
        return json.dumps(fields).encode(), 200


def ask(port: int, body: bytes) -> tuple[int, Any]:
    """Status and parsed body of one chat completion request.

    Raises:
        ValueError: The body is not JSON.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/chat/completions", body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def _fault(status: int, answer: Any, expected: int) -> str:
    """What is wrong with an answer; a busy server may always say so."""
    if status == 200 == expected:
        return "" if answer.get("choices") and answer.get("usage") else "no completion"
    if status not in (expected, 429):
        return f"status {status} instead of {expected}: {answer}"
    error = answer.get("error")
    is_error = isinstance(error, dict) and {"message", "type", "param", "code"} == set(error)
    return "" if is_error and error["message"] else f"no OpenAI error: {answer}"


def resident_mb(pid: int) -> float:
    """Memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} is gone")


def free_port() -> int:
    """A port of the loopback interface that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(policy: str, *arguments: str, seconds: float = 90) -> tuple[Any, int]:
    """A server process that is ready, and its port.

    Raises:
        RuntimeError: It ended, or was not ready in time.
    """
    port = free_port()
    own = ["--engine", "hf", "--port", str(port)]
    command = [sys.executable, "-m", "vpo_lightning.serve", policy, *own, *arguments]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return process, port
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise RuntimeError(f"the server did not start (exit status {process.wait()})")


def soak(policy: str, prompt: str, seconds: float, clients: int) -> dict[str, Any]:
    """Starts a server, lets the clients at it, stops it, and returns the figures."""
    process, port = start_server(policy)
    try:
        Soak(port, prompt, min(15.0, seconds / 3)).run(clients)  # memory of buffers and caches
        before = resident_mb(process.pid)
        run = Soak(port, prompt, seconds)
        run.run(clients)
        after = resident_mb(process.pid)
        process.send_signal(signal.SIGTERM)
        status = process.wait(60)
    finally:
        process.kill()
    return {
        "requests": sum(run.statuses.values()),
        "statuses": {str(k): v for k, v in sorted(run.statuses.items())},
        "faults": run.faults,
        "memory_mb": [round(before, 1), round(after, 1)],
        "exit_status": status,
    }


def main() -> None:
    """Prints the figures; exit status 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("policy", help="run folder or model folder")
    parser.add_argument("--prompt", default="hello")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    figures = soak(given.policy, given.prompt, given.seconds, given.clients)
    print(json.dumps(figures, indent=1))
    sys.exit(1 if figures["faults"] or figures["exit_status"] else 0)


if __name__ == "__main__":
    main()
