"""An event loop beside the program: it goes on while the program trains."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class EventLoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, waited for; of several errors in it the first."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    def stop(self) -> None:
        """Ends the thread; a second call does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
