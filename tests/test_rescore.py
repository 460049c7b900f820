"""vpo-rescore: stored rollouts under every method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from tests.rollout.scripted import collector, row, vpo
from vpo_lightning import methods
from vpo_lightning.evaluation.heatmap import heatmap_svg
from vpo_lightning.prompting import MultiAnswer, SingleAnswer
from vpo_lightning.rescore import main
from vpo_lightning.rollout.credit import Method
from vpo_lightning.rollout.rescoring import Settings, rescore, sign_agreement
from vpo_lightning.rollout.store import write_rollouts
from vpo_lightning.rollout.stored import read_stored
from vpo_lightning.scoring import RewardVector


def write_steps(
    folder: Path,
    steps: int,
    prompts: int,
    group_size: int,
    answers: int = 3,
    method: Method | None = None,
    **settings: Any,
) -> None:
    """Rollouts of a run with seed 3, VPO's by default, answers with random rewards."""
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        values = torch.rand(prompts, group_size, answers, 2, generator=generator).tolist()
        groups = {f"p{step}_{i}": values[i] for i in range(prompts)}
        made = collector(groups, method or vpo(MultiAnswer(answers)), **settings)
        batch = made.collect([row(name) for name in groups], step)
        write_rollouts(batch, folder / "rollouts")


def test_a_vpo_run_gets_the_advantages_it_trained_with(tmp_path: Path) -> None:
    write_steps(tmp_path, 2, 3, 4)
    stored = read_stored(tmp_path)
    found = rescore(vpo(MultiAnswer(3)), stored, Settings(3, 4))
    torch.testing.assert_close(found.advantages, stored.advantages, rtol=0, atol=1e-12)
    assert found.signal_fraction == 1.0
    assert 0 < found.weight_variance < 0.1


def report_of(folder: Path, *arguments: str) -> dict[str, Any]:
    assert main([str(folder), *arguments, "--out", str(folder / "out")]) == 0
    return json.loads((folder / "out" / "rescore.json").read_text())


def test_the_runs_own_reward_vector_and_length_penalty_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vector = RewardVector(["o1", "o0"], {"o0": 3.0}, {"o1": 0.2}, {"o1": 1.0, "o0": 2.0})
    method = vpo(MultiAnswer(3), reward_vector=vector)
    write_steps(tmp_path, 2, 3, 4, method=method, soft_overlong_tokens=8)
    (tmp_path / "config.yaml").write_text(
        "seed: 3\nrollout: {sampling: {max_tokens: 8}, soft_overlong_tokens: 8}\n"
        "preset: {name: official}\nreward_vector: {_target_: vpo_lightning.scoring.RewardVector, "
        "objectives: [o1, o0], scale: {o0: 3.0}, floor: {o1: 0.2}, weights: {o1: 1.0, o0: 2.0}}\n"
    )
    report = report_of(tmp_path, "--methods", "vpo,multi_rlvr")
    assert report["correlation"][0][1] == 1.0
    assert report["preset"] == "official"
    assert report["rewards"] == "o1, o0; o0 x 3; 0 where o1 < 0.2"
    assert report["fixed_weights"] == {"o1": 1.0, "o0": 2.0}
    assert "rewards: o1, o0; o0 x 3" in capsys.readouterr().out
    other = report_of(tmp_path, "--methods", "multi_rlvr", "--weights", "o1=1")
    assert other["fixed_weights"] == {"o1": 1.0, "o0": 0.0}
    assert other["correlation"] != [row[::2] for row in report["correlation"][::2]]


def test_single_answer_methods_see_each_answer_as_a_rollout(tmp_path: Path) -> None:
    """Copies count as often as they were written; the chain gets the mean of its answers."""
    chains = [[[1.0, 0.0], [1.0, 0.0]], [[0.0, 0.5], [0.5, 0.5]], [[0.25, 0.0]], []]
    batch = collector({"p": chains}, vpo(MultiAnswer(2))).collect([row("p")], 0)
    write_rollouts(batch, tmp_path / "rollouts")
    scores = np.array([0.5, 0.5, 0.25, 0.5, 0.125, 0.0, 0.0, 0.0])
    expected = (scores - scores.mean()) / (scores.std() + 1e-6)
    grpo = methods.read_method(methods.ablation_files()["grpo"], "matched", {"m": 2})
    found = rescore(grpo, read_stored(tmp_path), Settings(3, 1))
    assert (found.group_size, found.num_answers) == (8, 1)
    np.testing.assert_allclose(found.advantages[0], expected.reshape(4, 2).mean(1), atol=1e-12)
    assert found.mean_abs_advantage == pytest.approx(np.abs(expected).mean())
    report = report_of(tmp_path, "--methods", "vpo,grpo")
    assert [r["compared"] for r in report["methods"]] == ["4 chains of 2", "8 answers"]
    assert "each of the 2 answers" in (tmp_path / "out" / "rescore.html").read_text()


def test_a_single_answer_run_gets_the_advantages_it_trained_with(tmp_path: Path) -> None:
    for name in ("grpo", "gdpo", "max_at_k"):
        method = methods.read_method(methods.ablation_files()[name], "matched", {"m": 1})
        assert isinstance(method.prompt, SingleAnswer)
        write_steps(tmp_path / name, 2, 3, 4, answers=1, method=method)
        stored = read_stored(tmp_path / name)
        found = rescore(method, stored, Settings(3, 1))
        torch.testing.assert_close(found.advantages, stored.advantages, rtol=0, atol=1e-12)


# In a process of its own, where the shape checks of the tests are off.
MEASURE = """
import sys, time
from vpo_lightning.rescore import main
import vpo_lightning.rollout.rescoring
start = time.process_time()  # other work on the machine does not count
status = main(sys.argv[1:])
print("seconds", time.process_time() - start)
sys.exit(status)
"""


def test_ten_thousand_rollouts_take_less_than_ten_seconds(tmp_path: Path) -> None:
    write_steps(tmp_path / "run", 25, 50, 8)
    arguments = [str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--seed", "3"]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True
    )
    seconds = float(done.stdout.split()[-1])
    print(f"vpo-rescore: 10,000 rollouts, all methods: {seconds:.1f} s")
    assert seconds < 10
    report = json.loads((tmp_path / "out" / "rescore.json").read_text())
    assert report["rollouts"] == 10_000
    assert [r["method"] for r in report["methods"]] == sorted(methods.ablation_files())
    by_name = {r["method"]: r for r in report["methods"]}
    assert by_name["vpo"]["correlation_with_trained"] == pytest.approx(1.0)
    assert by_name["grpo"]["weight_variance"] == 0.0
    assert by_name["vpo_exact"]["weight_variance"] == 0.0
    assert by_name["vpo_exact"]["standard_error"] == 0.0
    assert by_name["grpo"]["standard_error"] is None
    assert 0.005 < by_name["vpo"]["standard_error"] < 0.02  # N = 100: .009 to .018 on unit vectors
    assert by_name["random_weight_grpo"]["weight_variance"] > by_name["vpo"]["weight_variance"]
    assert "10000 rollouts of 3 answers in 1250 groups of 8" in done.stdout
    assert "<svg" in (tmp_path / "out" / "rescore.html").read_text()


def test_a_method_that_is_not_defined_for_the_rollouts_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_steps(tmp_path, 1, 2, 2, answers=1)
    assert main([str(tmp_path), "--methods", "vpo,max_at_k"]) == 0
    assert "max_at_k: k is 2, expected 1 <= k < rollouts per prompt" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no rollouts"),
        (["--methods", "nonsense"], "no such ablation"),
        (["--weights", "gold"], "expected name=number"),
        (["--preset", "nonsense"], "preset=nonsense"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if arguments:
        write_steps(tmp_path, 1, 2, 4)
    assert main([str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_sign_agreement_counts_rollouts_where_neither_is_zero() -> None:
    found = sign_agreement(
        [torch.tensor([1.0, -1.0, 0.0, 2.0, 1e-17]), torch.tensor([1.0, 1.0, 3.0, 0.0, -1.0])]
    )
    assert found[0, 1] == 0.5


def test_the_heatmap_is_well_formed_and_marks_what_is_missing() -> None:
    picture = ElementTree.fromstring(
        heatmap_svg(["a<b", "c"], [[1.0, float("nan")], [0.3, 1.0]], 0.0)
    )
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert texts == ["a<b", "a<b", "c", "c", "1", ".30", "1"]
