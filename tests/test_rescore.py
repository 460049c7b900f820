"""vpo-rescore: stored rollouts under every method."""

from __future__ import annotations

import json
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tests.rollout.scripted import collector, row, vpo
from vpo_lightning import build
from vpo_lightning.evaluation.heatmap import heatmap_svg
from vpo_lightning.prompting import MultiAnswer
from vpo_lightning.rescore import main
from vpo_lightning.rollout.rescoring import Settings, read_stored, rescore, sign_agreement
from vpo_lightning.rollout.store import write_rollouts


def write_steps(folder: Path, steps: int, prompts: int, group_size: int, answers: int = 3) -> None:
    """Rollouts of a VPO run with seed 3, answers with random rewards."""
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        values = torch.rand(prompts, group_size, answers, 2, generator=generator).tolist()
        groups = {f"p{step}_{i}": values[i] for i in range(prompts)}
        made = collector(groups, vpo(MultiAnswer(answers)))
        batch = made.collect([row(name) for name in groups], step)
        write_rollouts(batch, folder / "rollouts")


def test_a_vpo_run_gets_the_advantages_it_trained_with(tmp_path: Path) -> None:
    write_steps(tmp_path, 2, 3, 4)
    stored = read_stored(tmp_path)
    found = rescore(vpo(MultiAnswer(3)), stored, Settings(3, 4, {}))
    torch.testing.assert_close(found.advantages, stored.advantages, rtol=0, atol=1e-12)
    assert found.signal_fraction == 1.0
    assert 0 < found.weight_variance < 0.1


def test_ten_thousand_rollouts_take_less_than_ten_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_steps(tmp_path / "run", 25, 50, 8)
    start = time.perf_counter()
    assert main([str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--seed", "3"]) == 0
    assert time.perf_counter() - start < 10
    report = json.loads((tmp_path / "out" / "rescore.json").read_text())
    assert report["rollouts"] == 10_000
    assert [r["method"] for r in report["methods"]] == sorted(build.ablation_files())
    by_name = {r["method"]: r for r in report["methods"]}
    assert by_name["vpo"]["correlation_with_trained"] == pytest.approx(1.0)
    assert by_name["grpo"]["weight_variance"] == 0.0
    assert by_name["vpo_exact"]["weight_variance"] == 0.0
    assert by_name["random_weight_grpo"]["weight_variance"] > by_name["vpo"]["weight_variance"]
    assert "10000 rollouts in 1250 groups" in capsys.readouterr().out
    assert "<svg" in (tmp_path / "out" / "rescore.html").read_text()


def test_a_method_that_is_not_defined_for_the_rollouts_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_steps(tmp_path, 1, 2, 2)
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
        [torch.tensor([1.0, -1.0, 0.0, 2.0]), torch.tensor([1.0, 1.0, 3.0, 0.0])]
    )
    assert found[0, 1] == 0.5


def test_the_heatmap_is_well_formed_and_marks_what_is_missing() -> None:
    picture = ElementTree.fromstring(
        heatmap_svg(["a<b", "c"], [[1.0, float("nan")], [0.3, 1.0]], 0.0)
    )
    texts = [element.text for element in picture.iter() if element.tag.endswith("text")]
    assert texts == ["a<b", "a<b", "c", "c", "1", ".30", "1"]
