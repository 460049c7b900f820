"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from vpo_lightning.errors import ConfigError


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


@contextmanager
def readable_parquet(path: Path) -> Iterator[None]:
    """Says which file it is that cannot be read, or is none of this kind.

    Raises:
        ConfigError: Reading failed.
    """
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path}: not a readable parquet file of this kind ({reason}); remove it, or restore it"
        ) from error
