"""How the processes that train together see each other's values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import distributed


@dataclass(frozen=True)
class Exchange:
    """This process among those that work together.

    Attributes:
        rank: Of this process.
        gather: One value of each process, in the order of ranks; all processes call it.
    """

    rank: int
    gather: Callable[[Any], list[Any]]


ALONE = Exchange(0, lambda value: [value])
"""One process, which sees only itself."""


def exchange_between(rank: int, world_size: int) -> Exchange:
    """The exchange of a job's processes.

    Args:
        rank: Of this process.
        world_size: All of them.
    """
    if world_size == 1:
        return ALONE

    def gather(value: Any) -> list[Any]:
        shares: list[Any] = [None] * world_size
        distributed.all_gather_object(shares, value)
        return shares

    return Exchange(rank, gather)
