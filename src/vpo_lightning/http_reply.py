"""The reply to an HTTP request, within a deadline that holds for the whole of it."""

from __future__ import annotations

import queue
import threading
import urllib.request

_LARGEST = 1 << 24  # bytes of a reply; more is not read, and no JSON


def read_reply(request: urllib.request.Request, seconds: float) -> bytes:
    """The body of the reply; a TimeoutError at the deadline, also if bytes keep dripping in.

    The time limit of a socket is that of each wait, and headers may drip as well as bodies; so the
    whole is done in a thread, which is left to itself at the deadline.

    Args:
        request: What is asked.
        seconds: The deadline.

    Raises:
        OSError: No connection, or none any more; HTTPError for a status of 400 or more, and
            TimeoutError at the deadline.
        http.client.HTTPException: What came is no HTTP.
    """
    outcome: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            with urllib.request.urlopen(request, timeout=seconds) as reply:
                outcome.put(reply.read(_LARGEST))
        except Exception as error:  # raised again where it can be handled
            outcome.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        found = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError("the reply does not end") from None
    if isinstance(found, Exception):
        raise found
    return found
