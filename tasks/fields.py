"""Typed access to one object of a data file; what does not fit is refused with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.tasks.text import quoted

_KINDS: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "a whole number": int,
    "true or false": bool,
    "an object": Mapping,
    "a list": list,
}


@dataclass(frozen=True)
class Fields:
    """A JSON object, with the place that error messages name.

    Attributes:
        values: The object.
        place: File, row and config key, for instance ``a.jsonl, row 3 (task.train_path)``.
        path: Where the object lies inside the row, for instance ``question_decomposition[1]``.
    """

    values: Mapping[str, Any]
    place: str
    path: str = ""

    def text(self, name: str) -> str:
        """The string in a field. Like all readers here, raises ConfigError for anything else."""
        return self._read(name, "text")

    def integer(self, name: str) -> int:
        """The whole number in a field (true and false are none)."""
        return self._read(name, "a whole number")

    def flag(self, name: str) -> bool:
        """The truth value in a field."""
        return self._read(name, "true or false")

    def texts(self, name: str) -> list[str]:
        """The list of strings in a field."""
        return [self._expect(v, path, "text") for v, path in self._items(name)]

    def integers(self, name: str) -> list[int]:
        """The list of whole numbers in a field."""
        return [self._expect(v, path, "a whole number") for v, path in self._items(name)]

    def inner(self, name: str) -> Fields:
        """The object in a field."""
        return Fields(self._read(name, "an object"), self.place, self.path_of(name))

    def objects(self, name: str) -> list[Fields]:
        """The list of objects in a field."""
        return [
            Fields(self._expect(v, path, "an object"), self.place, path)
            for v, path in self._items(name)
        ]

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.values.get(name) is not None

    def path_of(self, name: str) -> str:
        """A field's path inside the row."""
        return f"{self.path}.{name}" if self.path else name

    def error(self, name: str, problem: str) -> ConfigError:
        """The error that says what is wrong with a field."""
        return ConfigError(f"{self.place}: field {self.path_of(name)} {problem}")

    def _read(self, name: str, kind: str) -> Any:
        if name not in self.values:
            raise self.error(name, f"is missing; expected {kind}")
        return self._expect(self.values[name], self.path_of(name), kind)

    def _items(self, name: str) -> Iterator[tuple[Any, str]]:
        items: Sequence[Any] = self._read(name, "a list")
        return ((item, f"{self.path_of(name)}[{i}]") for i, item in enumerate(items))

    def _expect(self, value: Any, path: str, kind: str) -> Any:
        is_wrong_flag = isinstance(value, bool) and kind == "a whole number"
        if is_wrong_flag or not isinstance(value, _KINDS[kind]):
            raise ConfigError(f"{self.place}: field {path} is {quoted(value)}; expected {kind}")
        return value
