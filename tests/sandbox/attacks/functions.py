"""Functions whose result should pass for the expected one, 42, without being it."""

_EQUAL = "class A({base}):\n  __eq__ = lambda *a: True\ndef f(x): return A()"

FUNCTIONS = {
    "an object equal to everything": _EQUAL.format(base="object"),
    "a list equal to everything": _EQUAL.format(base="list"),
    "text equal to everything": _EQUAL.format(base="str"),
    "a number equal to everything": _EQUAL.format(base="int"),
    "patched JSON": "import json\njson.dumps = lambda *a: 'true'\ndef f(x): return 5",
    "printing a result": "print('42')\ndef f(x): print('42')",
    "leaving before returning": "def f(x): raise SystemExit(0)",
    "a cycle": "def f(x):\n  a = []\n  a.append(a)\n  return a",
    "a generator without end": "def f(x):\n  while True: yield 42",
}
