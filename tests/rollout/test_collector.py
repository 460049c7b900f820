"""Steps 1 to 7 of the way of the data, with a scripted engine and answers that are vectors."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.rollout.scripted import ScriptedEngine, collector, row, vpo
from vpo_lightning.core.gdpo import gdpo
from vpo_lightning.core.scalarization import chebyshev_set_reward, set_reward
from vpo_lightning.prompting import GoalConditioned, SingleAnswer
from vpo_lightning.rollout.collector import RolloutCollector, fixed_weights
from vpo_lightning.rollout.credit import advantages, reward_tensors, standard_error
from vpo_lightning.rollout.exchange import Exchange

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "advantages.json").read_text()
)
VECTORS = [[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5]], [[1.0, 0.0]], [[0.6, 0.6]]]
FIXED = torch.tensor([[[0.25, 0.75], [0.6, 0.4]]], dtype=torch.float64)


def given(weights: Tensor) -> Any:
    """A `weights` slot that draws the same for every group."""
    return lambda counts, seeds, step: weights.expand(len(seeds), -1, -1)


@pytest.mark.parametrize("case", GOLDEN["vpo"], ids=lambda case: case["name"])
def test_rollouts_are_credited_as_in_the_reference(case: dict[str, Any]) -> None:
    rows: dict[str, list[int]] = {}
    for i, uid in enumerate(case["uids"]):
        rows.setdefault(uid, []).append(i)
    for uid, members in rows.items():
        draws = case["weights"][uid]
        width = len(draws[0]) if draws else 2
        weights = torch.tensor([draws or [[0.5, 0.5]]], dtype=torch.float64)
        vectors = {uid: [case["sub_scores"][i] for i in members]}
        batch = collector(vectors, vpo(weights=given(weights))).collect([row(uid, width)], 0)
        (group,) = batch.groups
        raw = case["expected"]["raw_scores"][uid]
        np.testing.assert_allclose(group.set_rewards.numpy(), raw, rtol=0, atol=1e-9)
        expected = [case["expected"]["advantages"][i] for i in members]
        # The reference computes advantages in float32.
        np.testing.assert_allclose(group.advantages.numpy(), expected, rtol=2e-5, atol=2e-6)


def test_the_set_reward_by_hand() -> None:
    batch = collector({"p": VECTORS}, vpo(weights=given(FIXED))).collect([row("p")], 0)
    expected = torch.tensor([0.675, 0.5, 0.425, 0.6], dtype=torch.float64)
    torch.testing.assert_close(batch.groups[0].set_rewards, expected)


@pytest.mark.parametrize("slot", [set_reward, chebyshev_set_reward])
def test_prompts_with_other_numbers_of_objectives_do_not_change_a_score(slot: Any) -> None:
    wide = [[[0.9, 0.4, 0.7]], [[0.2, 0.8, 0.5]], [[0.1, 0.6, 0.3]], [[0.4, 0.3, 0.2]]]
    groups = {"p": VECTORS, "wide": wide}
    made = collector(groups, vpo(set_reward=slot))
    together = made.collect([row("p"), row("wide", 3)], 0).groups
    alone = [made.collect([r], 0).groups[0] for r in (row("p"), row("wide", 3))]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one.set_rewards, other.set_rewards, rtol=0, atol=1e-15)
        assert one.weights.shape[1] == len(one.row.objectives)
    assert float(together[0].set_rewards.abs().sum()) > 0


def drawn(made: RolloutCollector, step: int) -> Tensor:
    return made.collect([row("p")], step).groups[0].weights


def test_weights_are_redrawn_at_each_step_unless_a_prompt_keeps_them() -> None:
    redrawn = collector({"p": VECTORS}, vpo())
    kept = collector({"p": VECTORS}, vpo(redraw_weights=False))
    assert not torch.equal(drawn(redrawn, 0), drawn(redrawn, 1))
    assert torch.equal(drawn(redrawn, 1), drawn(redrawn, 1))
    assert torch.equal(drawn(kept, 0), drawn(kept, 1))


def test_a_goal_conditioned_prompt_states_the_weights_that_score_it() -> None:
    seen: list[str] = []
    single = [[[1.0, 0.0]], [[0.0, 1.0]]]
    method = vpo(GoalConditioned(), weights=given(FIXED[:, :1]))
    made = collector({"p": single}, method)
    made.encode = lambda messages: seen.append(messages[-1]["content"]) or [1]
    group = made.collect([row("p")], 0).groups[0]
    assert group.set_rewards.tolist() == [0.25, 0.75]
    assert "much o0" in seen[0]
    assert "0.75" in seen[0] or "75" in seen[0]


def test_a_further_attempt_samples_other_completions_of_the_same_prompt() -> None:
    made = collector({"p": VECTORS}, vpo())
    for attempt in (0, 0, 1):
        made.collect([row("p")], 0, attempt=attempt)
    seeds = [request.seeds for request in cast(ScriptedEngine, made.engine).requests]
    assert seeds[0] == seeds[1]
    assert not set(seeds[0]) & set(seeds[2])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_names_its_prompt(value: float) -> None:
    text = "NaN" if value != value else "Infinity"
    made = collector({"p": [[[1.0, 0.0]], [[0.0, 1.0]]]}, vpo(SingleAnswer()))
    made.engine = ScriptedEngine({"p": ["[0.5, 0.5]", f"[{text}, 0.5]"]})
    with pytest.raises(ValueError, match=r"score returned (nan|inf) as o0 for row p"):
        made.collect([row("p")], 0)


def test_a_wrong_number_of_rewards_names_its_prompt() -> None:
    made = collector({"p": [[[1.0, 0.0]], [[0.0, 1.0, 0.5]]]}, vpo(SingleAnswer()))
    with pytest.raises(ValueError, match=r"returned 3 values for row p"):
        made.collect([row("p")], 0)
    with pytest.raises(ValueError, match=r"answers to prompt 'p' have \[2, 3\] rewards"):
        reward_tensors([[[[1.0, 0.0]], [[1.0, 0.0, 0.5]]]], FIXED, torch.ones(1, 2).long(), ["p"])


def test_rewards_outside_0_and_1_are_counted() -> None:
    made = collector({"p": [[[1.5, 0.0]], [[-0.5, 1.0]]]}, vpo(SingleAnswer()))
    assert made.collect([row("p")], 0).metrics["rollout/out_of_range_fraction"] == 0.5


def test_a_group_of_one_and_a_group_without_answers_have_no_signal() -> None:
    for vectors in ([[[1.0, 0.5]]], [[], [], []]):
        batch = collector({"p": vectors}, vpo()).collect([row("p")], 0)
        assert batch.groups[0].advantages.tolist() == [0.0] * len(vectors)
        assert batch.metrics["rollout/no_signal_fraction"] == 1.0
    assert batch.groups[0].set_rewards.tolist() == [0.0] * 3
    assert batch.metrics["rollout/parsed_answers"] == 0.0


def test_long_completions_lose_score_before_the_advantage() -> None:
    made = collector({"p": VECTORS}, vpo(weights=given(FIXED)), soft_overlong_tokens=8)
    group = made.collect([row("p")], 0).groups[0]
    lengths = torch.tensor([len(c.ids) for c in group.completions])
    penalty = (-lengths / 8).clamp(-1, 0)
    assert float(penalty.min()) < 0
    plain = torch.tensor([0.675, 0.5, 0.425, 0.6], dtype=torch.float64)
    torch.testing.assert_close(group.set_rewards, plain + penalty)
    spread = group.set_rewards - group.set_rewards.mean()
    torch.testing.assert_close(
        group.advantages, spread / (group.set_rewards.std(correction=0) + 1e-6)
    )


@pytest.mark.parametrize("convention", ["matched", "verl", "none", "trl"])
def test_batch_wide_advantages_do_not_depend_on_the_number_of_processes(convention: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(4, 3, 1, 2, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 9, (4, 3), generator=generator)
    method = vpo(SingleAnswer(), advantage=functools.partial(gdpo, convention=convention))
    weights = fixed_weights([row("p").objectives] * 4)
    names = [f"p{i}" for i in range(4)]

    def part(groups: slice) -> Any:
        tensors = reward_tensors(
            values[groups].tolist(), weights[groups], lengths[groups], names[groups]
        )
        return set_reward(tensors.rewards, tensors.weights), tensors

    shares = [part(slice(rank, None, 2)) for rank in range(2)]
    scores, tensors = part(slice(None))
    whole = advantages(method, scores, tensors)
    for rank, share in enumerate(shares):
        exchange = Exchange(rank, lambda _: shares)
        found = advantages(method, *share, exchange=exchange)
        torch.testing.assert_close(found, whole[rank::2], rtol=0, atol=0)
    assert not torch.equal(advantages(method, shares[0][0], shares[0][1]), whole[::2])


def test_the_standard_error_is_that_of_many_repetitions() -> None:
    made = collector({"p": VECTORS}, vpo())
    scores = torch.stack([made.collect([row("p")], s).groups[0].set_rewards for s in range(300)])
    errors = [
        made.collect([row("p")], s).metrics["rollout/set_reward_standard_error"] for s in range(100)
    ]
    # 5 blocks underestimate a standard deviation by 6 %; 100 estimates of it vary by a few percent.
    assert np.mean(errors) == pytest.approx(float(scores.std(dim=0).mean()), rel=0.15)


def test_one_draw_has_no_standard_error() -> None:
    tensors = reward_tensors([VECTORS], FIXED, torch.ones(1, 4).long(), ["p"])
    assert np.isnan(standard_error(vpo(), tensors))


def test_fixed_weights_add_up_to_one_unless_taken_as_given() -> None:
    objectives = [row("p", 2).objectives, row("wide", 4).objectives]
    assert fixed_weights(objectives)[0, 0].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert fixed_weights(objectives, normalize=False).sum(-1).flatten().tolist() == [2.0, 4.0]


def test_collecting_without_an_engine_says_so() -> None:
    made = collector({"p": VECTORS}, vpo())
    made.engine = None
    with pytest.raises(RuntimeError, match="no engine"):
        made.collect([row("p")], 0)
