"""The types of a task's settings, checked against its declaration."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

from vpo_lightning.errors import ConfigError
from vpo_lightning.task import Task


def check_settings(task: Task) -> None:
    """Refuses settings of a dataclass task whose type is not the declared one.

    Raises:
        ConfigError: Names the key, the value and the expected type.
    """
    hints = get_type_hints(type(task))
    for setting in dataclasses.fields(task):  # type: ignore[arg-type]
        value = getattr(task, setting.name)
        hint = hints[setting.name]
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if not any(_fits(value, option) for option in options):
            expected = " or ".join(_TYPE_NAMES.get(o, str(o)) for o in options)
            raise ConfigError(f"task.{setting.name}={value!r}: expected {expected}")


_TYPE_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    types.NoneType: "null",
}


def _fits(value: Any, option: Any) -> bool:
    if option not in _TYPE_NAMES:
        return True  # a component, built and checked by itself
    if isinstance(value, bool):
        return option is bool
    return isinstance(value, (int, float) if option is float else option)
