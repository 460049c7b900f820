"""Limits of handing weights to the engine: on the time it takes, and on the mismatch afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from vpo_lightning.errors import ConfigError

# Largest difference in nats that rounding explains, and one that nothing but other weights does.
# Measured between vLLM and transformers: float32 up to 4e-5, bfloat16 up to .28.
_WARN = {"float64": 1e-6, "float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}
_STOP = {"float64": 1e-3, "float32": 0.05, "float16": 1.0, "bfloat16": 2.0}


@dataclass(frozen=True)
class HandoverSettings:
    """Limits of the hand-over of weights to the engine.

    Attributes:
        timeout: Seconds that one hand-over may take.
        warn: Warn when a log-probability of the engine differs by more from the policy's, in nats;
            None for what suits the dtype.
        stop: Stop training when one differs by more than this, in nats; None as for `warn`.

    Raises:
        ConfigError: A value that is not positive, or a stop below the warning.
    """

    timeout: int | float = 600
    warn: int | float | None = None
    stop: int | float | None = None

    def __post_init__(self) -> None:
        """Checks the values."""
        for name in ("timeout", "warn", "stop"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"rollout.handover.{name}={value}: it must be positive")
        if self.warn is not None and self.stop is not None and self.stop < self.warn:
            raise ConfigError(
                f"rollout.handover.stop={self.stop}: it must not be below rollout.handover.warn="
                f"{self.warn}"
            )

    def limits(self, dtype: str) -> tuple[int | float, int | float]:
        """The differences, in nats, above which to warn and to stop, for weights of `dtype`."""
        warn = _WARN[dtype] if self.warn is None else self.warn
        stop = _STOP[dtype] if self.stop is None else self.stop
        return warn, max(warn, stop)


def within_seconds(limit: int | float, what: str, action: Callable[[], None]) -> None:
    """Runs `action` in a thread of its own and waits for it.

    A thread, because an exchange between processes that hangs cannot be interrupted; after the
    limit it is left behind, and whatever it was working on must not be used again.

    Raises:
        TimeoutError: It took longer than `limit` seconds.
        Exception: What the action raised.
    """
    import torch

    failures: list[BaseException] = []
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            with torch.no_grad():
                action()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name=what, daemon=True)
    thread.start()
    thread.join(limit)
    if thread.is_alive():
        raise TimeoutError(
            f"{what} took longer than rollout.handover.timeout={limit:g} seconds: the engine or "
            "another process of the job hangs; see the other processes' logs, or raise the limit"
        )
    if failures:
        raise failures[0]
