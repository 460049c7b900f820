"""Pool files: resumed, refused where they do not fit, and all that figures are computed from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluate import other_prompts
from vpo_lightning.evaluation.pool import PromptPool, read_pools, read_sampling, write_pools
from vpo_lightning.evaluation.pool_metrics import PoolMetrics
from vpo_lightning.evaluation.pool_store import PoolStore, policy_and_temperature, pool_name
from vpo_lightning.evaluation.results import (
    compare,
    evaluation_record,
    find_evaluation,
    mean_table,
    pairs_with,
    read_evaluations,
)

SAMPLING = {"policy": "vpo", "temperature": 0.7, "seed": 1, "model": "abc"}
METRICS = PoolMetrics(ks=[1, 2, 4], deployed_answers=2, grid_size=8)


def pool(prompt_id: str, best: float = 1.0) -> PromptPool:
    """Three chains of two answers over two objectives."""
    rewards = [[[best, 0.0], [0.0, best]], [[0.5, 0.5], [0.0, 0.0]], [[best, best], [0.0, 0.25]]]
    texts: list[list[str | None]] = [["left", "right"], ["Left ", None], ["both", "none"]]
    return PromptPool(
        prompt_id,
        ["x", "y"],
        [1.0, 3.0],
        rewards,
        texts,
        tokens=[10, 20, 30],
        is_truncated=[False, True, False],
        votes=[["l", "r"], ["l", None], ["b", "n"]],
        prompt_tokens=7,
    )


def test_a_pool_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "pools" / "x.parquet"
    write_pools([pool("a"), replace(pool("é"), votes=None)], path, SAMPLING)
    assert read_pools(path) == [pool("a"), replace(pool("é"), votes=None)]
    assert read_sampling(path) == SAMPLING
    assert [file.name for file in path.parent.iterdir()] == ["x.parquet"]


def test_sampling_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "vpo_T0.7.parquet"
    PoolStore(path, SAMPLING).add([pool("a"), pool("b")])
    again = PoolStore(path, SAMPLING)
    assert set(again.finished()) == {"a", "b"}
    again.add([pool("c")])
    assert [p.prompt_id for p in again.finish(["c", "a"])] == ["c", "a"]
    assert [p.prompt_id for p in read_pools(path)] == ["c", "a", "b"]
    assert [file.name for file in tmp_path.iterdir()] == ["vpo_T0.7.parquet"]
    more = PoolStore(path, SAMPLING)  # further prompts later
    more.add([pool("d")])
    more.finish(["a", "b", "c", "d"])
    assert set(PoolStore(path, SAMPLING).finished()) == {"a", "b", "c", "d"}


def test_answers_of_another_sampling_are_refused_or_give_way(tmp_path: Path) -> None:
    path = tmp_path / "vpo_T0.7.parquet"
    PoolStore(path, SAMPLING).add([pool("a")])
    other = {**SAMPLING, "model": "def"}
    with pytest.raises(ConfigError, match=r"model=abc and not def; choose another name or output="):
        PoolStore(path, other)
    assert not PoolStore(path, other, replaces=True).finished()
    write_pools([pool("a")], path)
    with pytest.raises(ConfigError, match="does not say how"):
        PoolStore(path, SAMPLING)


@pytest.mark.parametrize("policy", ["start, single", "vpo", "a/b ü", "vpo_T0.5"])
def test_a_file_says_whose_answers_it_holds(policy: str, tmp_path: Path) -> None:
    path = tmp_path / pool_name(policy, 0.7)
    assert path.parent == tmp_path
    write_pools([pool("a")], path, {"policy": policy, "temperature": 0.7})
    assert policy_and_temperature(path) == (policy, 0.7)
    write_pools([pool("a")], tmp_path / "grpo_T1.0_seed3.parquet")
    assert policy_and_temperature(tmp_path / "grpo_T1.0_seed3.parquet") == ("grpo", 1.0)
    write_pools([pool("a")], tmp_path / "nobody.parquet")
    with pytest.raises(ConfigError, match=r"nobody\.parquet: it does not say"):
        policy_and_temperature(tmp_path / "nobody.parquet")


def test_figures_of_a_pool_by_hand() -> None:
    figures = METRICS.per_prompt(pool("a"))
    assert figures["best@1"] == pytest.approx((0.25 + 0.75 + 0.5 + 0 + 1 + 0.1875) / 6)
    assert figures["best@1/x"] == pytest.approx((1 + 0.5 + 1) / 6)
    assert figures["pass@1"] == pytest.approx(1 / 6)
    assert figures["pass@1_calls"] == pytest.approx(1 / 3)
    assert figures["pass@2_calls"] == pytest.approx(2 / 3)
    assert figures["hypervolume@1"] == pytest.approx((0.25 + 1) / 6)
    assert figures["distinct_fraction"] == pytest.approx(4 / 6)  # l, r, b, n
    assert figures["pareto_count"] == 1
    assert figures["nonzero_fraction"] == pytest.approx(5 / 6)
    assert figures["tokens_per_answer"] == 10
    assert figures["truncated_fraction"] == pytest.approx(1 / 3)
    assert figures["deployed_expected_max"] == pytest.approx(figures["expected_max@1_calls"])
    # Two answers vote l, worth .25 and .5; alone each vote wins with its own.
    assert figures["majority@1"] == pytest.approx((0.25 + 0.75 + 0.5 + 1 + 0.1875) / 6)
    named = PoolMetrics(ks=[1], weights={"mostly_x": {"x": 3.0, "y": 1.0}}, solved={"x": 0.5})
    assert named.per_prompt(pool("a"))["best@1/mostly_x"] == pytest.approx(
        (0.75 + 0.25 + 0.5 + 1 + 0.0625) / 6
    )
    assert named.per_prompt(pool("a"))["pass@1"] == pytest.approx(3 / 6)
    with pytest.raises(ConfigError, match=r"evaluation\.metrics\.solved=\['z'\]"):
        PoolMetrics(solved={"z": 1.0}).per_prompt(pool("a"))


def test_evaluations_are_read_from_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "pools"
    for seed, best in ((1, 1.0), (2, 0.5)):
        name = pool_name("vpo", 0.7, seed if seed > 1 else None)
        pools = [pool("a", best), pool("b", best / 2)]
        write_pools(pools, folder / name, {**SAMPLING, "seed": seed})
    write_pools(
        [pool("b", 0.5), pool("a", 1.0)],
        folder / pool_name("start, single", 0.7),
        {"policy": "start, single", "temperature": 0.7},
    )
    start, vpo = read_evaluations(tmp_path, METRICS)
    assert (start.policy, vpo.policy, vpo.seeds) == ("start, single", "vpo", [1, 2])
    assert find_evaluation(tmp_path, "vpo", 0.7, METRICS).figures == vpo.figures
    one, two = (METRICS.per_prompt(pool("a", best))["best@2"] for best in (1.0, 0.5))
    assert vpo.figures["a"]["best@2"] == pytest.approx((one + two) / 2)
    gaps = compare(vpo, start)
    halves = [METRICS.per_prompt(pool("a", b))["best@2"] for b in (1.0, 0.5, 0.25)]
    expected = (
        (halves[0] + halves[1]) / 2 - halves[0] + (halves[1] + halves[2]) / 2 - halves[1]
    ) / 2
    assert gaps["best@2"].difference == pytest.approx(expected)
    record = evaluation_record([start, vpo], pairs_with("vpo", [start, vpo]))
    assert json.loads(json.dumps(record)) == record
    assert record["evaluations"][1]["calls"] == 3
    assert record["evaluations"][1]["prompt_tokens"] == 7
    assert record["comparisons"][0]["second"] == "start, single"
    figures = record["evaluations"][0]["figures"]
    assert figures["best@1"]["sampling_error"] > 0
    assert figures["best@2_calls"]["low"] is not None
    assert mean_table([vpo])["T=0.7"]["vpo"]["best@2"] == pytest.approx(
        (vpo.figures["a"]["best@2"] + vpo.figures["b"]["best@2"]) / 2
    )
    with pytest.raises(ConfigError, match=r"no pools/\*\.parquet"):
        read_evaluations(folder, METRICS)


def test_a_comparison_says_where_equal_ids_may_be_other_prompts(tmp_path: Path) -> None:
    for policy, task in (("vpo", "5x5"), ("other", "7x7"), ("same", "5x5"), ("untold", None)):
        sampling = {"policy": policy, "temperature": 0.7, "task": task}
        path = tmp_path / "pools" / pool_name(policy, 0.7)
        write_pools([pool("a"), pool("b")], path, sampling)
    (line,) = other_prompts(pairs_with("vpo", read_evaluations(tmp_path, METRICS)))
    assert line.startswith("other: its answers were sampled with other settings of task")
