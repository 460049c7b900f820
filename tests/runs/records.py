"""What a run folder holds, for comparisons between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from vpo_lightning.lightning.loggers import read_metrics
from vpo_lightning.rollout.store import read_rollouts


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics of each step, without figures of the machine: seconds and memory."""
    return [
        {key: value for key, value in record.items() if not key.startswith(("time/", "memory/"))}
        for record in read_metrics(folder)
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of the trained policy."""
    return load_file(folder / "policy" / "model.safetensors")


def sampled_ids(folder: Path) -> dict[tuple[int, str, int], list[int]]:
    """The completion ids by step, prompt and sample."""
    return {
        (record["step"], record["prompt_id"], record["sample"]): record["completion_ids"]
        for record in read_rollouts(folder / "rollouts")
    }
