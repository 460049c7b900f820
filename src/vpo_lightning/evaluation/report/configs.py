"""In which settings the runs of a report differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST_ROWS = 24
_NOT_SHOWN = {"name", "seed"}  # said elsewhere
_OWN = "vpo_lightning."


def differences(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The keys whose values are not the same in all configs, runs with equal values in one column.

    A key that a config lacks has the value ``–``. At most 24 keys, those of the fewest words first
    where there are more.

    Args:
        runs: Configs by the runs' labels.

    Returns:
        ``columns`` (labels joined) and ``rows`` (key and one value for each column); empty if all
        configs are the same.
    """
    leaves = [_flattened(config) for config in runs.values()]
    keys = list(dict.fromkeys(key for one in leaves for key in one))
    found = [key for key in keys if len({one.get(key) for one in leaves}) > 1]
    if len(found) > _MOST_ROWS:
        found = sorted(found, key=lambda key: key.count("."))[:_MOST_ROWS]
    if not found:
        return {}
    columns: dict[tuple[str, ...], list[str]] = {}
    for label, one in zip(runs, leaves, strict=True):
        columns.setdefault(tuple(one.get(key, "–") for key in found), []).append(label)
    return {
        "columns": ["; ".join(labels) for labels in columns.values()],
        "rows": [(key, [values[i] for values in columns]) for i, key in enumerate(found)],
    }


def _flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """The leaves of a nested config as text, by dotted key; lists are leaves."""
    leaves: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if name in _NOT_SHOWN or key == "_partial_":
            continue
        if isinstance(value, Mapping) and value:
            leaves |= _flattened(value, f"{name}.")
        else:
            leaves[name] = "null" if value is None else str(value).removeprefix(_OWN)
    return leaves
