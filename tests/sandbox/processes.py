"""The processes below another one, from /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress


def descendants(pid: int) -> list[int]:
    """Process ids below `pid`, zombies too."""
    children: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                children += [int(child) for child in file.read().split()]
    return [found for child in children for found in (child, *descendants(child))]


def wait_until(claim: Callable[[], bool], seconds: float = 10.0) -> None:
    """Returns once `claim` holds; fails if it does not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.01)
