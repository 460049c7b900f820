"""Runs a program in a process that nothing else needs any more.

As LiveCodeBench does, a program finds the names of the usual modules already imported. With
``function`` it is a library: it is executed under a name other than ``__main__``, the function (or
the method of ``class Solution``) is called with the JSON values of standard input, one a line, and
what it returns is written as JSON; what it prints is dropped.
"""

from __future__ import annotations

import atexit
import importlib
import io
import json
import os
import sys
import threading
import types
from typing import Any

# Later ones win: builtins come after math and operator, whose pow differs.
_STAR_IMPORTS = """
    string re datetime collections heapq bisect copy math random statistics itertools functools
    operator io sys json builtins typing
""".split()  # noqa: SIM905
_RECURSION_LIMIT = 50_000
_MAX_INT_DIGITS = 50_000

_module = types.ModuleType("__main__")  # filled before the fork: filling it later would copy pages


def warm_up() -> None:
    """Imports what programs use, once for all of them."""
    names = _module.__dict__
    for name in _STAR_IMPORTS:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", [n for n in dir(module) if not n.startswith("_")])
        names.update({n: getattr(module, n) for n in public})
    names.update({name: sys.modules[name] for name in _STAR_IMPORTS})
    for name in ("ast", "decimal", "fractions", "queue", "array", "traceback"):
        importlib.import_module(name)


def run(source: bytes, function: str | None) -> int:
    """Runs `source` on file descriptors 0 and 1; the exit code: 0, or 1 after an uncaught error.

    A `SystemExit` is a normal end whatever its code, as LiveCodeBench has it.
    """
    sys.setrecursionlimit(_RECURSION_LIMIT)
    sys.set_int_max_str_digits(_MAX_INT_DIGITS)
    sys.stdin = sys.__stdin__ = _text_file(0, "r")
    sys.stdout = sys.__stdout__ = _text_file(1, "w")
    sys.stderr = sys.__stderr__ = _text_file(2, "w")
    sys.argv = ["solution.py"]
    try:
        if function is None:
            _execute(source, "__main__")
        else:
            _call(source, function)
        code = 0
    except SystemExit:
        code = 0
    except BaseException:
        code = 1
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        code = 1
    return code


def _execute(source: bytes, name: str) -> dict[str, Any]:
    sys.modules[name] = _module
    names = _module.__dict__
    names.update(stdin=sys.stdin, stdout=sys.stdout, stderr=sys.stderr, argv=sys.argv)
    names.update(__name__=name, __file__="solution.py")
    exec(compile(source, "solution.py", "exec"), names)
    return names


def _call(source: bytes, function: str) -> None:
    arguments = [json.loads(line) for line in sys.stdin.read().split("\n") if line.strip()]
    result = os.dup(1)
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 1)
    names = _execute(source, "solution")
    target = names.get(function)
    if target is None and "Solution" in names:
        target = getattr(names["Solution"](), function)
    if target is None:
        raise NameError(function)
    text = json.dumps(_plain(target(*arguments))).encode()
    while text:
        text = text[os.write(result, text) :]


def _plain(value: Any) -> Any:
    """The value in the types of JSON; a tuple or set is refused, since no JSON value equals it."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("the keys of a JSON object are text")
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "item"):  # a number of numpy
        return _plain(value.item())
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _text_file(number: int, mode: str) -> io.TextIOWrapper:
    return open(number, mode, encoding="utf-8", closefd=False)  # type: ignore[return-value]
