"""The tests of a LiveCodeBench problem: decoded, and the smallest of them chosen."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vpo_lightning.tasks.fields import Fields

_MOST_BYTES = 1 << 30  # of decompressed tests: the largest published ones are well below


@dataclass(frozen=True)
class ProblemTest:
    """One test.

    Attributes:
        input: Standard input, or the arguments in JSON, one a line.
        output: What is to be written, or the returned value in JSON.
        kind: ``stdin`` or ``functional``.
        is_public: Whether the problem's text shows it.
    """

    input: str
    output: str
    kind: str
    is_public: bool


def read_tests(record: Fields) -> list[ProblemTest]:
    """The private tests of a problem, then the public ones that are not among them.

    Private tests are JSON, or JSON inside a pickle (zlib, base64), which is read as data: a pickle
    that names any function or class is refused.

    Raises:
        ConfigError: Tests that cannot be read; names the field.
    """
    public = _read_field(record, "public_test_cases", is_public=True)
    private = _read_field(record, "private_test_cases", is_public=False)
    shown = {(test.input, test.output) for test in public}
    hidden = {(test.input, test.output) for test in private}
    marked = [replace(test, is_public=(test.input, test.output) in shown) for test in private]
    return marked + [test for test in public if (test.input, test.output) not in hidden]


def smallest_tests(
    tests: Sequence[ProblemTest], most_tests: int, most_characters: int
) -> list[ProblemTest]:
    """At most `most_tests` tests by length of input and output, equal ones in their order.

    Tests longer than `most_characters` are dropped.
    """
    lengths = {id(test): len(test.input) + len(test.output) for test in tests}
    kept = [test for test in tests if lengths[id(test)] <= most_characters]
    return sorted(kept, key=lambda test: lengths[id(test)])[:most_tests]


def _read_field(record: Fields, name: str, *, is_public: bool) -> list[ProblemTest]:
    stored = record.values.get(name)
    if not isinstance(stored, list):
        text = record.text(name)
        try:
            stored = _decode(text)
        except _UNREADABLE as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise record.error(name, f"cannot be decoded ({reason})") from error
    tests: list[ProblemTest] = []
    for case in Fields({name: stored}, record.place).objects(name):
        kind = case.text("testtype")
        if kind not in ("stdin", "functional"):
            raise case.error("testtype", f"is {kind!r}; expected stdin or functional")
        tests.append(ProblemTest(case.text("input"), case.text("output"), kind, is_public))
    return tests


class _DataUnpickler(pickle.Unpickler):
    """Reads numbers, text and containers; refuses every name of a function or class."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"a pickle of tests may not name {module_name}.{global_name}")


_UNREADABLE = (
    pickle.UnpicklingError,
    binascii.Error,
    zlib.error,
    EOFError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    MemoryError,
    RecursionError,
)


def _decode(text: str) -> Any:
    if not text.lstrip().startswith("["):
        stream = zlib.decompressobj()
        raw = stream.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        if not stream.eof:
            raise ValueError(f"incomplete, or more than {_MOST_BYTES} bytes")
        text = _DataUnpickler(io.BytesIO(raw)).load()
        if not isinstance(text, str):
            raise TypeError(f"the pickle holds {type(text).__name__}; expected JSON text")
    return json.loads(text)
