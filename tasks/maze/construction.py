"""The numbers from which mazes are built, and which of them belong to which size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from vpo_lightning.errors import ConfigError

SIZES = range(5, 16, 2)


@dataclass(frozen=True)
class Construction:
    """The numbers of the construction; ranges are (least, most), both included.

    Attributes:
        openings: Walls opened after Prim's algorithm.
        items: Items in each of the two zones.
        lava: Lava tiles.
        item_radius: Manhattan distance from its corner within which an item lies.
        lava_margin: Rows and columns along each border that are free of lava.
        slack: Moves of the budget beyond the longer of the two shortest walks via a corner.
    """

    openings: tuple[int, int]
    items: tuple[int, int]
    lava: tuple[int, int]
    item_radius: int = 2
    lava_margin: int = 2
    slack: int = 7

    @classmethod
    def of(cls, size: int, changes: Mapping[str, Any] | None = None) -> Construction:
        """The numbers for mazes of one size, with `changes` to them where a value is not None.

        Raises:
            ConfigError: A size that is not odd from 5 to 15, an unknown name, a bad value.
        """
        if size not in SIZES:
            raise ConfigError(
                f"task.size={size!r}: mazes are generated in the odd sizes from 5 to 15 (an even "
                "size would put a wall into a corner); set task.size to one of them"
            )
        values: dict[str, Any] = dict(_DEFAULTS.get(size) or _scaled(size))
        for name, value in (changes or {}).items():
            if name not in {field.name for field in fields(cls)}:
                known = ", ".join(field.name for field in fields(cls))
                raise ConfigError(f"task.construction.{name}: unknown; expected one of {known}")
            if value is not None:
                is_range = name in ("openings", "items", "lava")
                values[name] = _range(name, value) if is_range else _number(name, value)
        return cls(**values)


# Published for 9; 5 and 7 keep its proportions.
_DEFAULTS: dict[int, dict[str, Any]] = {
    5: {
        "openings": (4, 7),
        "items": (2, 3),
        "lava": (1, 2),
        "item_radius": 1,
        "lava_margin": 1,
        "slack": 3,
    },
    7: {"openings": (10, 15), "items": (3, 5), "lava": (2, 4), "slack": 5},
    9: {"openings": (18, 28), "items": (3, 5), "lava": (3, 5)},
}


def _scaled(size: int) -> dict[str, Any]:
    least, most = _DEFAULTS[9]["openings"]
    area = size * size / 81
    return _DEFAULTS[9] | {"openings": (round(least * area), round(most * area))}


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError(f"task.construction.{name}={value!r}: expected a whole number, 0 or more")
    return value


def _range(name: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ConfigError(f"task.construction.{name}={value!r}: expected [least, most]")
    least, most = (_number(name, bound) for bound in value)
    if least > most:
        raise ConfigError(f"task.construction.{name}={list(value)}: the least exceeds the most")
    return least, most
