"""Wrong input ends in one line that names the key and the fix, before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAZE = {
    "grid_text": "S . G\n. . .\nD . E",
    "start": [0, 0],
    "end": [2, 2],
    "max_steps": 9,
}


def run(tmp_path: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vpo_lightning.train", *overrides],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def refused(tmp_path: Path, *overrides: str) -> str:
    """The one line on standard error."""
    start = time.monotonic()
    result = run(tmp_path, *overrides)
    # Two seconds are promised on an idle machine (it takes half a second); tests share theirs.
    assert time.monotonic() - start < 8
    assert result.returncode == 2, result.stdout + result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert not (tmp_path / "outputs").exists()
    return lines[0]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("task=foo", "maze"),
        ("ablation=foo", "vpo"),
        ("experiment=smok", "did you mean smoke?"),
        ("sweep=maze_klx", "did you mean maze_kl?"),
        ("tsk=maze", "tsk"),
        ("task.sise=9", "sise"),
        ("rollout.sampling.temperature=0", "temperature"),
        ("m=0", "m=0"),
        ("m=-1", "m=-1"),
        ("m=three", "m=three"),
        ("seed=x", "seed=x"),
        ("seed=-1", "seed=-1"),
        ("engine=replay", "engine.path=..."),
        ("threads=0", "threads=0"),
        ("optimizer.warmup_steps=x", "a number, such as 10"),
        ("evaluation.top_p=high", "a number, such as 1.0"),
        ("alarms.kl=x", "alarms.kl=x"),
        ("rollout.sampling=3", "a mapping with the keys _target_, max_tokens"),
        ("skip_finished=3", "skip_finished=3: expected true or false"),
        ("ppo.share_prompts=maybe", "true or false"),
        ("seed={a: 1}", "a number, such as 0"),
        ("name=[a,b]", "one value"),
        ("warmup.steps=0", "warmup.steps=0"),
        ("ablation.weights.alpha=0", "alpha"),
        ("ablation.weights.alpha=-1", "alpha"),
        ("ablation.weights.alpha=[1,1,0,1]", "alpha"),
        ("ablation.weights.num_draws=0", "num_draws"),
        ("rollout.group_size=0", "rollout.group_size"),
        ("rollout.prompts_per_step=0", "rollout.prompts_per_step"),
        ("rollout.overlong_prompts=maybe", "drop"),
        ("task.size=8", "task.size"),
        ("reward_vector.weights={silver:1}", "silver"),
        ("evaluation.num_answers=31", "evaluation.num_answers"),
        ("evaluation.metrics.cover={silver:1}", "write +evaluation.metrics.cover={silver:1}"),
        ("evaluation.weights=some", "evaluation.weights=some"),
        ("evaluation.weights=[[1,0,0]]", "evaluation.weights"),
        ("evaluation.weights=[[1,-1,0,0]]", "evaluation.weights"),
        ("evaluation.weights=[]", "evaluation.weights"),
        ("model.num_kv_heads=3", "model.num_kv_heads"),
        ("warmup=none", "warmup=none"),
        ("strategy.devices=0", "strategy.devices"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, override: str, named: str) -> None:
    assert named in refused(tmp_path, override)


def test_processes_that_cannot_share_the_prompts_are_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, "strategy=ddp", "rollout.prompts_per_step=7")
    assert "rollout.prompts_per_step" in message
    message = refused(tmp_path, "strategy=ddp", "trainer.validation_prompts=1")
    assert "trainer.validation_prompts=1" in message


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([], "no rows"),
        ([json.dumps(MAZE), json.dumps(MAZE)[:40]], "row 2"),
        ([json.dumps({**MAZE, "grid_text": "S . G\n. .\nD . E"})], "row 1"),
        ([json.dumps({**MAZE, "max_steps": "many"})], "max_steps"),
    ],
)
def test_a_broken_data_file_is_named_with_its_row(
    tmp_path: Path, lines: list[str], named: str
) -> None:
    path = tmp_path / "mazes.jsonl"
    path.write_text("\n".join(lines))
    message = refused(tmp_path, "task.size=3", f"task.train_path={path}", f"task.test_path={path}")
    assert named in message or "empty" in message
    assert "mazes.jsonl" in message


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    assert "nowhere.jsonl" in refused(tmp_path, "task.train_path=nowhere.jsonl")


def test_a_model_folder_without_tokenizer_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("")
    message = refused(
        tmp_path, "model=pretrained", f"model.path={folder}", "warmup=none", "task=maze_9x9_text"
    )
    assert "tokenizer" in message
    assert "model.path" in message


def test_a_folder_that_holds_a_run_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("{}")
    message = refused(tmp_path, "hydra.run.dir=run")
    assert "resume=true" in message


@pytest.mark.parametrize(
    "arguments",
    [("run=nowhere", "resume=true"), ("run=nowhere",), ("run=nowhere", "resume=true", "seed=1")],
)
def test_a_wrong_resume_is_explained(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert "run=" in refused(tmp_path, *arguments) or "seed" in refused(tmp_path, *arguments)


def test_a_config_is_checked_without_importing_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from vpo_lightning import rules; from hydra import compose, "
        "initialize_config_module as init\n"
        "with init('vpo_lightning.conf', version_base='1.3'): rules.check(compose('train'))\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
