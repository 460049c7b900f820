"""vpo-diagnose in whole: high on mazes, format first for a model that knows nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.text_model import save_text_model
from vpo_lightning import entry
from vpo_lightning.diagnose import job

pytestmark = pytest.mark.slow


def test_mazes_conflict_and_a_second_look_samples_nothing(
    tmp_path: Path, warmup_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [
        "task=maze",
        "task.size=5",
        "warmup.steps=150",
        "warmup.prompts_per_step=8",
        "rollout.sampling.max_tokens=40",
        "num_prompts=32",
        f"cache_dir={warmup_cache}",
        f"output={tmp_path}",
    ]
    assert entry.run(job, "diagnose", settings) == 0
    found = json.loads((tmp_path / "diagnose.json").read_text())
    assert found["verdict"] == "vpo"
    assert found["figures"]["headroom"]["mean"] > 0.05
    assert "VPO is likely to help: a pool of 24 is worth" in capsys.readouterr().out
    pools = {path: path.stat().st_mtime_ns for path in (tmp_path / "pools").iterdir()}
    subset = ["reward_vector=subset", "reward_vector.objectives=[completion,avoid_lava]"]
    assert entry.run(job, "diagnose", [*settings, *subset]) == 0
    assert json.loads((tmp_path / "diagnose.json").read_text())["verdict"] == "like_grpo"
    assert pools == {path: path.stat().st_mtime_ns for path in (tmp_path / "pools").iterdir()}


def test_a_model_without_the_format_has_to_learn_it_first(tmp_path: Path) -> None:
    save_text_model(tmp_path / "model")
    settings = [
        "task=musique",
        f"policy={tmp_path / 'model'}",
        "warmup=none",
        "rollout.sampling.max_tokens=8",
        "num_prompts=2",
        "num_answers=3",
        f"output={tmp_path / 'out'}",
    ]
    assert entry.run(job, "diagnose", settings) == 0
    found = json.loads((tmp_path / "out" / "diagnose.json").read_text())
    assert found["verdict"] == "teach_format"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["num_answers=7"], "num_answers=7"),
        (["num_prompts=0"], "num_prompts=0"),
        (["thresholds.headroom=2.0"], "thresholds.headroom"),
        (["policy=no/such/folder/here"], "policy="),
        (["split=dev"], "dev"),
    ],
)
def test_wrong_input_is_one_line(
    overrides: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.run(job, "diagnose", overrides) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert named in line
