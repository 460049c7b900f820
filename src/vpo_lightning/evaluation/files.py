"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(text: str, path: Path) -> None:
    """Writes a file under a temporary name and renames it; its folder is made where it is missing.

    Halves of surrogate pairs, which a tokenizer may produce and nothing can encode, become ``?``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8", errors="replace")
    os.replace(temporary, path)


def write_json(value: Any, path: Path) -> None:
    """The same with a value as JSON."""
    write_text(json.dumps(value, indent=1) + "\n", path)
