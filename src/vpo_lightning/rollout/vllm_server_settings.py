"""Where the vLLM servers of `engine=vllm_server` are, and how long they are waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vpo_lightning.errors import ConfigError

TRANSFERS = ("files", "nccl")
"""vLLM's names of the ways that weights travel."""


@dataclass(frozen=True)
class VLLMServerSettings:
    """The servers, and the limits of what is asked of them.

    Attributes:
        urls: The servers, e.g. ``http://127.0.0.1:8000``; `scripts/serve_rollouts.py` starts them.
        transfer: ``files`` or ``nccl``, which the servers must have been started with.
        weights_dir: Where the current weights are kept as files. The servers read them there when
            `transfer` is ``files``.
        concurrency: Completions that a training process asks of a server at a time.
        request_timeout: Seconds for one completion, the wait in the server's queue included.
        handover_timeout: Seconds for a server to take new weights.
        server_timeout: Seconds to wait for a server to come, or to come back when none is left.
        attempts: Times that one completion is asked for before the run stops.

    Raises:
        ConfigError: A value outside its range.
    """

    urls: Sequence[str]
    transfer: str = "files"
    weights_dir: str = "/dev/shm"
    concurrency: int = 256
    request_timeout: float | int = 600
    handover_timeout: float | int = 120
    server_timeout: float | int = 300
    attempts: int = 3

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if isinstance(self.urls, str) or not self.urls:
            raise ConfigError(
                f"engine.urls={self.urls}: it must be a list, e.g. [http://127.0.0.1:8000]"
            )
        for url in self.urls:
            if not str(url).startswith(("http://", "https://")):
                raise ConfigError(f"engine.urls: {url} is no address like http://127.0.0.1:8000")
        if len(set(self.urls)) < len(self.urls):
            raise ConfigError(f"engine.urls={list(self.urls)}: a server must be named once")
        for name, ok, expected in (
            ("transfer", self.transfer in TRANSFERS, " or ".join(TRANSFERS)),
            ("concurrency", self.concurrency >= 1, "at least 1"),
            ("request_timeout", self.request_timeout > 0, "positive"),
            ("handover_timeout", self.handover_timeout > 0, "positive"),
            ("server_timeout", self.server_timeout > 0, "positive"),
            ("attempts", self.attempts >= 1, "at least 1"),
        ):
            if not ok:
                raise ConfigError(f"engine.{name}={getattr(self, name)}: it must be {expected}")
