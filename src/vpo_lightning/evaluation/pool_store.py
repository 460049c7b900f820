"""The pools of one policy under one sampling setting, written while they are sampled.

Finished prompts are added as small files beside the final one, each all or nothing, and become that
file when the last prompt is there. Sampling that was interrupted goes on with the prompts that are
missing; other settings than those of the answers on disk are refused.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.pool import PromptPool, read_pools, read_sampling, write_pools


class PoolStore:
    """A pool file and its parts.

    Args:
        path: The final file.
        sampling: How the answers are sampled; JSON values.
        replaces: Whether answers that were sampled in another way give way.

    Raises:
        ConfigError: Answers on disk were sampled in another way, or do not say how, and stay.
    """

    def __init__(self, path: Path, sampling: Mapping[str, Any], *, replaces: bool = False) -> None:
        self.path = path
        self._sampling = json.loads(json.dumps(dict(sampling)))
        self._parts = path.with_suffix(".parts")
        for file in list(self._files()):
            if replaces and read_sampling(file) != self._sampling:
                file.unlink(missing_ok=True)
            else:
                self._refuse_other(file)

    def finished(self) -> dict[str, PromptPool]:
        """The pools on disk by prompt id."""
        return {pool.prompt_id: pool for file in self._files() for pool in read_pools(file)}

    def add(self, pools: Sequence[PromptPool]) -> None:
        """Writes the pools of further prompts."""
        number = 1 + max((int(part.stem) for part in self._part_files()), default=-1)
        write_pools(pools, self._parts / f"{number:06d}.parquet", self._sampling)

    def finish(self, prompt_ids: Sequence[str]) -> list[PromptPool]:
        """The pools of these prompts, in their order, made the final file with others behind them.

        Raises:
            KeyError: A prompt has not been sampled.
        """
        there = self.finished()
        pools = [there.pop(prompt_id) for prompt_id in prompt_ids]
        if self._part_files() or not self.path.exists():
            write_pools([*pools, *there.values()], self.path, self._sampling)
            shutil.rmtree(self._parts, ignore_errors=True)
        return pools

    def _files(self) -> Iterator[Path]:
        if self.path.exists():
            yield self.path
        yield from self._part_files()

    def _part_files(self) -> list[Path]:
        return sorted(p for p in self._parts.glob("*.parquet") if p.stem.isdecimal())

    def _refuse_other(self, file: Path) -> None:
        there = read_sampling(file)
        if there == self._sampling:
            return
        stated = "it does not say how its answers were sampled"
        if there:
            mine = self._sampling
            keys = sorted(key for key in {*there, *mine} if there.get(key) != mine.get(key))
            stated = ", ".join(f"{key}={there.get(key)} and not {mine.get(key)}" for key in keys)
        raise ConfigError(
            f"{file}: {stated}; choose another name or output=<folder>, or remove the file"
        )


def pool_name(policy: str, temperature: float, seed: int | None = None) -> str:
    """The name of a pool file; only further seeds are named."""
    stem = re.sub(r"[^\w.@=+-]+", "_", policy)
    suffix = "" if seed is None else f"_seed{seed}"
    return f"{stem}_T{temperature}{suffix}.parquet"


def policy_and_temperature(path: Path) -> tuple[str, float]:
    """What a pool file says about itself, else what its name says.

    Raises:
        ConfigError: Neither says it.
    """
    said = read_sampling(path)
    if "policy" in said:
        return said["policy"], float(said["temperature"])
    match = re.fullmatch(r"(.+)_T([\d.]+?)(_seed\d+)?", path.stem)
    if not match:
        raise ConfigError(
            f"{path}: it does not say how it was sampled; expected a file written by vpo-train or "
            "vpo-eval, or a name like vpo_T0.7.parquet"
        )
    return match[1], float(match[2])
