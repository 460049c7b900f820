"""The processes that train together, by name of the config group `strategy`."""

from __future__ import annotations

from lightning.pytorch.strategies import Strategy

from vpo_lightning.errors import ConfigError


def build_strategy(name: str) -> Strategy | str:
    """Lightning's strategy of that name.

    Raises:
        ConfigError: An unknown name.
    """
    if name not in ("auto", "ddp"):
        raise ConfigError(f"strategy.strategy={name}: it must be auto or ddp")
    return name
