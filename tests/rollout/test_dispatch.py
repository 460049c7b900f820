"""The reference's whole records, from the text of a completion to the credit of a rollout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.errors import InstantiationException

from tests.rollout.scripted import ScriptedEngine
from vpo_lightning import build, methods
from vpo_lightning.config_errors import is_config_error
from vpo_lightning.prompting import GoalConditioned, MultiAnswer
from vpo_lightning.rollout.batch import RolloutGroup
from vpo_lightning.rollout.collector import RolloutCollector
from vpo_lightning.rollout.credit import Method
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.rules import check
from vpo_lightning.task import Task

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "dispatch.json").read_text()
)["cases"]
TASKS = {
    "maze": "maze_9x9_text",
    "musique": "musique",
    "eureqa": "eureqa",
    "tool": "toolrl",
    "livecodebench": "livecodebench",
}
FILES = methods.ablation_files()
TOLERANCE = 1e-9  # the reference computes rewards in float64 too


@pytest.fixture(scope="module")
def tasks() -> Iterator[dict[str, Task]]:
    """One task of each kind."""
    if shutil.which("bwrap") is None:
        pytest.fail("bwrap is missing: apt-get install bubblewrap (scripts/test.sh does so)")
    made: dict[str, Task] = {}
    with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
        for source, name in TASKS.items():
            made[source] = build.build_task(compose("train", [f"task={name}"]))
    yield made
    made["livecodebench"].sandbox.close()  # type: ignore[attr-defined]


def method_of(case: dict[str, Any]) -> Method:
    """The published method that such a record belongs to."""
    m = (case["extra_info"] or {}).get("num_solutions") or 1
    given = truth_of(case).get("weights")
    name = "goal_conditioned" if given else "multi_rlvr" if m > 1 else "grpo"
    surroundings = {"m": m, "trainer": {"max_steps": 1}}
    method = methods.read_method(FILES[name], "official", surroundings)
    if given is None:
        return method
    return replace(method, weights=lambda counts, seeds, step: own(given, int(counts[0])))


def own(weights: Sequence[float], count: int) -> torch.Tensor:
    """Test suites of code have up to 16 weights, of which a problem uses its own."""
    used = weights[:count] if len(weights) == 16 else weights
    return torch.tensor([[used]], dtype=torch.float64)


def truth_of(case: dict[str, Any]) -> dict[str, Any]:
    truth = case["ground_truth"]
    return json.loads(truth) if isinstance(truth, str) else truth


def collected(task: Task, case: dict[str, Any], method: Method) -> RolloutGroup:
    """A group of the record's completion and one without any answer."""
    truth = {key: value for key, value in truth_of(case).items() if key != "weights"}
    row = replace(task.row_from_ground_truth("row", truth), prompt="?")
    made = RolloutCollector(
        task=task,
        method=method,
        encode=lambda messages: [1],
        sampling=SamplingSettings(max_tokens=8),
        group_size=2,
        seed=0,
        engine=ScriptedEngine({"row": [case["text"], ""]}),
    )
    return made.collect([row], 0).groups[0]


@pytest.mark.parametrize(
    "case", [case for case in CASES if "raises" not in case["expected"]], ids=lambda c: c["id"]
)
def test_whole_records_are_collected_as_in_the_reference(
    case: dict[str, Any], tasks: dict[str, Task]
) -> None:
    task, method, expected = tasks[case["data_source"]], method_of(case), case["expected"]
    group = collected(task, case, method)
    is_single = not isinstance(expected["sub_scores"][0], list)
    matrix = [expected["sub_scores"]] if is_single else expected["sub_scores"]
    np.testing.assert_allclose(group.scored[0].matrix, matrix, rtol=0, atol=TOLERANCE)
    # The reference adds up the passed tests of a chain of programs; here, as elsewhere, they are
    # averaged. The group's normalisation takes the factor away.
    sums_tests = case["data_source"] == "livecodebench" and not is_single
    scale = len(matrix[0]) if sums_tests else 1
    assert float(group.set_rewards[0]) * scale == pytest.approx(expected["score"], abs=TOLERANCE)
    assert float(group.set_rewards[1]) == 0.0
    # GRPO as published: two rollouts s and 0 have the mean s / 2 and the sample std s / sqrt(2).
    score = expected["score"] / scale
    lead = score / 2 / (score / 2**0.5 + 1e-6)
    assert group.advantages.tolist() == pytest.approx([lead, -lead], abs=TOLERANCE)


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case["category"] == "wrong number of weights"],
    ids=lambda c: c["id"],
)
def test_weights_for_another_number_of_objectives_are_refused(
    case: dict[str, Any], tasks: dict[str, Task]
) -> None:
    given = truth_of(case)["weights"]
    if case["data_source"] == "livecodebench":
        # The reference pads every problem to 16 tests; here two weights are right for its two.
        given = [*given, 0.0]
    method = replace(
        method_of(case), weights=lambda *_, **__: torch.tensor([[given]], dtype=torch.float64)
    )
    with pytest.raises((ValueError, TypeError), match="weight"):  # the tests' shape checks
        collected(tasks[case["data_source"]], case, method)


def test_a_chain_is_never_asked_for_under_stated_weights() -> None:
    """The reference refuses weights for chains; here no prompt style states them to one."""
    assert GoalConditioned().num_answers == 1
    assert not MultiAnswer(3).shows_weights
    with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
        cfg = compose("train", ["ablation=goal_conditioned", "+ablation.prompt.m=3"])
    with pytest.raises(InstantiationException, match=r"argument 'm'") as caught:
        check(cfg)
    assert is_config_error(caught.value)
