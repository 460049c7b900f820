"""Whether a folder holds a whole model, seen from its files alone: quick, and without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vpo_lightning.errors import ConfigError

_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def check_model_folder(folder: Path, given: str) -> None:
    """Refuses a folder without a model, or with one that was cut short.

    Args:
        folder: The folder.
        given: What the command line says, ``key=value``, for errors.

    Raises:
        ConfigError: Names the file that is missing or broken.
    """

    def refuse(reason: str) -> ConfigError:
        key = given.partition("=")[0]
        return ConfigError(f"{given}: {reason}; set {key} to a model folder")

    if not folder.is_dir():
        raise refuse("no such folder")
    if not (folder / "config.json").is_file():
        raise refuse("the folder has no config.json")
    if _object(folder / "config.json") is None:
        raise refuse("its config.json is no JSON object")
    weights = _weight_files(folder)
    if not weights:
        raise refuse(f"the folder has no weights ({' or '.join(_WEIGHT_FILES)})")
    for path in weights:
        if not path.is_file():
            raise refuse(f"the folder has no {path.name}, which its index lists")
    tokenizers = [folder / name for name in _TOKENIZER_FILES if (folder / name).is_file()]
    if not tokenizers:
        raise refuse(f"the folder has no tokenizer ({' or '.join(_TOKENIZER_FILES)})")
    if tokenizers[0].suffix == ".json" and _object(tokenizers[0]) is None:
        raise refuse(f"its {tokenizers[0].name} is no JSON object")
    for path in weights:
        if path.suffix == ".safetensors" and not _is_whole(path):
            raise refuse(f"its {path.name} is broken or was cut short")


def _weight_files(folder: Path) -> list[Path]:
    """The weights by the index of a model in several files, else the one file there is."""
    for name in _WEIGHT_FILES:
        if (index := folder / f"{name}.index.json").is_file():
            shards = (_object(index) or {}).get("weight_map")
            named = shards.values() if isinstance(shards, dict) else []
            return sorted({folder / str(shard) for shard in named})
        if (folder / name).is_file():
            return [folder / name]
    return []


def _object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None for everything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_whole(path: Path) -> bool:
    """Whether a safetensors file ends where its header says.

    Source: https://github.com/huggingface/safetensors#format: 8 bytes with the header's length, the
    header, and the data up to the largest offset in it.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if 8 + length > size:
            return False
        try:
            header = json.loads(file.read(length))
            ends = [v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"]
        except (ValueError, AttributeError, TypeError, KeyError, IndexError):
            return False
    return 8 + length + max(ends, default=0) == size
