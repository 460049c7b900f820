"""What the framework is for: inside a search, a VPO policy is worth more than a GRPO policy."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from vpo_lightning.searching.curves import read_result

SETTINGS = (
    "task.size=5",
    "warmup.steps=250",
    "rollout.prompts_per_step=8",
    "rollout.sampling.max_tokens=40",
    "trainer.max_steps=60",
    "trainer.validate_every=0",
    "trainer.checkpoint_every=60",
    "evaluation.num_prompts=0",
)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_best_of_30_answers_is_better_for_random_weights_than_grpos(tmp_path: Path) -> None:
    # About two minutes of one core; docs/results/search.md has the figures of longer runs.
    curves = {}
    for method in ("vpo", "grpo"):
        cache = f"cache_dir={tmp_path / 'cache'}"
        train = ("train", *SETTINGS, f"ablation={method}", f"hydra.run.dir={method}", cache)
        search = ("search", f"policy={method}", "search=best_of_n", "budget.answers=30")
        for module, *words in (train, (*search, "prompts=64")):
            subprocess.run(
                [sys.executable, "-m", f"vpo_lightning.{module}", *words],
                cwd=tmp_path,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                timeout=1200,
                check=True,
            )
        result = read_result(tmp_path / method / "search" / "best_of_n")
        assert result["spent"]["answers"] == 64 * 30
        curves[method] = [prompt["expected_max"] for prompt in result["prompts"]]
    gains = [ours - theirs for ours, theirs in zip(curves["vpo"], curves["grpo"], strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5
    assert statistics.fmean(gains) > 1.96 * error
