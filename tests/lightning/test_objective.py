"""The loss: aggregation over any split, importance weights, KL in loss or reward."""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.lightning.batches import random_batch
from tests.tiny_models import tiny_model
from vpo_lightning.core.aggregation import AGGREGATIONS
from vpo_lightning.core.losses import clipped_surrogate, gspo, reinforce
from vpo_lightning.errors import ConfigError
from vpo_lightning.lightning.objective import PolicyObjective
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.rollout.batch import MicroBatch, RolloutBatch
from vpo_lightning.rollout.minibatch import UpdatePlan, micro_batches


def gradient(objective: PolicyObjective, size: int, batch: RolloutBatch, **plan: Any) -> Tensor:
    """The gradient of one optimizer step in float64, in micro-batches of `size`."""
    policy = tiny_model(dtype=torch.float64, is_exact=True)
    reference = tiny_model(dtype=torch.float64, is_exact=True, seed=1)
    for micro_batch in micro_batches(batch, UpdatePlan(micro_batch_size=size, **plan), 4, 0):
        if micro_batch.advantages.numel() == 0:
            continue
        logprobs, entropy = completion_logprobs(policy, micro_batch.tokens)
        with torch.no_grad():
            stored, _ = completion_logprobs(reference, micro_batch.tokens)
        loss, _ = objective(replace(micro_batch, reference_logprobs=stored), logprobs, entropy)
        (loss / objective.divisor(micro_batch)).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("kl_in", ["loss", "reward"])
def test_any_split_gives_the_same_gradient(aggregation: Any, kl_in: Any) -> None:
    objective = PolicyObjective(
        clipped_surrogate,
        0.1,
        kl_in=kl_in,
        aggregation=aggregation,
        max_tokens=9,
        importance_level="token",
    )
    whole = gradient(objective, 12, random_batch(3))
    assert torch.linalg.vector_norm(whole) > 1e-4
    for size in (1, 5):
        found = gradient(objective, size, random_batch(3))
        # Float64 sums in another order.
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-12)


def truncated(batch: RolloutBatch, sample: int) -> RolloutBatch:
    """The batch with one rollout of its first group cut off by the length limit."""
    group = batch.groups[0]
    group.completions[sample] = replace(group.completions[sample], finish_reason="length")
    return batch


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_a_dropped_rollout_leaves_the_loss_of_the_batch_without_it(aggregation: Any) -> None:
    objective = PolicyObjective(clipped_surrogate, 0.1, aggregation=aggregation)
    dropped = gradient(objective, 5, truncated(random_batch(3), 1), drop_truncated=True)
    without = random_batch(3)
    group = without.groups[0]
    del group.completions[1], group.scored[1]
    kept = torch.tensor([0, 2, 3])
    group.advantages, group.set_rewards = group.advantages[kept], group.set_rewards[kept]
    torch.testing.assert_close(dropped, gradient(objective, 12, without), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(dropped, gradient(objective, 12, random_batch(3)))


def one_micro_batch(tokens: int = 100, difference: float = 0.0) -> tuple[MicroBatch, Tensor]:
    """Two rollouts of `tokens` tokens whose log-probs are the engine's plus `difference`."""
    batch = random_batch(2)
    for group in batch.groups:
        group.completions = [
            replace(c, ids=[5] * tokens, logprobs=[-1.0] * tokens) for c in group.completions
        ]
    (made,) = micro_batches(batch, UpdatePlan(), 4, 0)
    return made, torch.full(made.engine_logprobs.shape, -1.0 + difference, requires_grad=True)


def test_sequence_weights_that_hit_the_cap_are_logged_and_warned_about() -> None:
    made, logprobs = one_micro_batch(difference=0.012)
    objective = PolicyObjective(
        reinforce,
        0.0,
        importance_level="sequence",
        importance_cap=3.0,
        importance_over_cap="drop",
    )
    loss, sums = objective(made, logprobs, torch.zeros_like(logprobs))
    assert float(loss.detach()) == 0.0  # exp(0.012 * 100) > 3 everywhere: nothing is left
    with pytest.warns(UserWarning, match=r"100% of the sequences .* left out"):
        figures = objective.metrics({key: float(value) for key, value in sums.items()})
    assert figures["train/importance_capped_fraction"] == 1.0


def test_token_weights_scale_the_loss_and_missing_ones_do_not() -> None:
    made, logprobs = one_micro_batch(difference=0.012)
    plain, _ = PolicyObjective(reinforce, 0.0)(made, logprobs, torch.zeros_like(logprobs))
    weighed = PolicyObjective(reinforce, 0.0, importance_level="token")
    loss, sums = weighed(made, logprobs, torch.zeros_like(logprobs))
    torch.testing.assert_close(loss, plain * torch.tensor(0.012).exp())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is capped, nothing is warned about
        figures = weighed.metrics({key: float(value) for key, value in sums.items()})
    assert figures["train/importance_capped_fraction"] == 0.0
    missing = replace(made, engine_logprobs=torch.full_like(made.engine_logprobs, torch.nan))
    loss, sums = weighed(missing, logprobs, torch.zeros_like(logprobs))
    torch.testing.assert_close(loss, plain)
    figures = weighed.metrics({key: float(value) for key, value in sums.items()})
    assert figures["train/importance_missing_fraction"] == 1.0
    assert figures["train/logprob_mismatch"] == 0.0


def test_kl_in_the_reward_lowers_the_advantage_of_each_token() -> None:
    made, logprobs = one_micro_batch(tokens=3)
    reference = torch.full_like(logprobs, -1.5).detach()
    given = replace(made, reference_logprobs=reference)
    objective = PolicyObjective(reinforce, 0.2, "k1", kl_in="reward")
    loss, _ = objective(given, logprobs, torch.zeros_like(logprobs))
    advantages = made.advantages[:, None].float() - 0.2 * 0.5
    torch.testing.assert_close(loss, (-advantages * logprobs).sum())


def test_the_logged_loss_is_the_aggregated_one() -> None:
    made, logprobs = one_micro_batch(tokens=4)
    objective = PolicyObjective(
        functools.partial(gspo, clip_low=0.1), 0.0, aggregation="seq_mean_token_mean"
    )
    loss, sums = objective(made, logprobs, torch.zeros_like(logprobs))
    figures = objective.metrics({key: float(value) for key, value in sums.items()})
    assert figures["train/loss"] == pytest.approx(float(loss.detach()) / len(made.advantages))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"kl_coefficient": -1.0}, "loss.kl_coefficient"),
        ({"importance_cap": 0.0}, "loss.importance_cap"),
        ({"aggregation": "seq_mean_token_sum_norm"}, "loss.max_tokens"),
    ],
)
def test_a_wrong_setting_names_its_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        PolicyObjective(reinforce, **settings)
