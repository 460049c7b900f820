"""A person can read in the rollouts folder what was scored and why."""

from __future__ import annotations

from pathlib import Path

from tests.rollout.scripted import ScriptedEngine, collector, row, vpo
from tests.task_layer.bad_task import BadTask
from vpo_lightning.prompting import MultiAnswer
from vpo_lightning.rollout.collector import RolloutCollector
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.rollout.store import read_rollouts, remove_rollouts_from, write_rollouts
from vpo_lightning.rollout.transcript import transcript, write_transcript
from vpo_lightning.scorer import Scorer, ScoringSettings

CHAIN = "<word_1>good</word_1><word_2>raise</word_2><word_3>good</word_3>"


def batch():
    task = BadTask()
    made = RolloutCollector(
        task,
        vpo(MultiAnswer(4)),
        encode=lambda messages: [7],
        sampling=SamplingSettings(max_tokens=8),
        group_size=2,
        seed=3,
        scorer=Scorer(task, ScoringSettings(failure_value=0.0, explain=True)),
    )
    made.engine = ScriptedEngine({"train-0": [CHAIN, "```nothing``` | here"]})
    return made.collect(task.rows("train")[:1], 5)


def test_every_answer_is_told_with_its_rewards_and_the_reason() -> None:
    text = transcript(batch())
    assert text.startswith("# Step 5, prompt train-0\n\n```text\nWhich word?\n```\n")
    assert CHAIN in text
    assert "| answer | x | y | best | |" in text
    assert "| 1 | 1 | 0.5 | 100% | ok: it says 1.0 |" in text
    assert "| 2 | 0 | 0 | 0% | failed: IndexError: list index out of range (" in text
    assert "| 3 | 1 | 0.5 | 0% | duplicate: it says 1.0 |" in text
    assert "| 4 | 0 | 0 | 0% | missing |" in text
    assert "````text\n```nothing``` | here\n````" in text


def test_the_parquet_file_holds_the_reason_of_every_answer(tmp_path: Path) -> None:
    write_rollouts(batch(), tmp_path)
    first, _ = read_rollouts(tmp_path)
    assert first["answers"][0]["explanation"] == "it says 1.0"
    assert first["answers"][1]["error"].startswith("IndexError")
    assert first["answers"][3]["error"] is None


def test_failures_are_among_the_metrics() -> None:
    assert batch().metrics["rollout/failed_fraction"] == 1 / 8


def test_a_long_prompt_is_cut_and_a_resumed_run_forgets_later_pages(tmp_path: Path) -> None:
    made = collector({"p": [[[1.0, 0.0]]]}, vpo())
    long = row("p")
    long = type(long)(long.id, "x" * 9000, long.ground_truth, long.objectives)
    path = write_transcript(made.collect([long], 1), tmp_path)
    assert "... (9000 characters)" in path.read_text()
    assert len(path.read_text()) < 6000
    remove_rollouts_from(tmp_path, 1)
    assert not list(tmp_path.iterdir())
