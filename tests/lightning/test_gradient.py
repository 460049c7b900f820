"""The gradient does not depend on how a rollout batch is cut into micro-batches."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.lightning.batches import random_batch
from tests.tiny_models import tiny_model
from vpo_lightning.core.losses import clipped_surrogate
from vpo_lightning.lightning.objective import PolicyObjective
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.rollout.minibatch import UpdatePlan, micro_batches

OBJECTIVE = PolicyObjective(functools.partial(clipped_surrogate, dual_clip=3.0), 0.1)


def gradient(micro_batch_size: int, *, skips: bool = True, groups: int = 3) -> Tensor:
    """The summed gradient of all micro-batches of one optimizer step."""
    batch = random_batch(groups)
    plan = UpdatePlan(micro_batch_size=micro_batch_size, skip_groups_without_signal=skips)
    policy = tiny_model(dtype=torch.float64, is_exact=True)
    reference = tiny_model(dtype=torch.float64, is_exact=True, seed=1)
    for micro_batch in micro_batches(batch, plan, 4, 0):
        if micro_batch.advantages.numel() == 0:
            continue
        logprobs, entropy = completion_logprobs(policy, micro_batch.tokens)
        with torch.no_grad():
            stored, _ = completion_logprobs(reference, micro_batch.tokens)
        given = replace(micro_batch, reference_logprobs=stored)
        loss, _ = OBJECTIVE(given, logprobs, entropy)
        (loss / micro_batch.step_tokens).backward()
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("skips", [True, False])
def test_any_split_gives_the_same_gradient(size: int, skips: bool) -> None:
    whole = gradient(12, skips=skips)
    assert torch.linalg.vector_norm(whole) > 1e-3
    # Float64 sums in another order.
    torch.testing.assert_close(gradient(size, skips=skips), whole, rtol=1e-9, atol=1e-12)


def test_groups_without_signal_pull_to_the_reference_only_on_request() -> None:
    assert not torch.allclose(gradient(12, skips=True), gradient(12, skips=False))


def test_every_optimizer_step_has_the_same_number_of_micro_batches() -> None:
    batch = random_batch(4)
    plan = UpdatePlan(minibatches=2, micro_batch_size=3)
    made = [micro_batches(batch, plan, 4, minibatch) for minibatch in range(2)]
    assert [len(update) for update in made] == [plan.accumulation(16)] * 2 == [3, 3]


def test_every_rollout_with_signal_is_used_exactly_once() -> None:
    batch = random_batch(4)
    plan = UpdatePlan(minibatches=2, micro_batch_size=3)
    used = sorted(
        value
        for minibatch in range(2)
        for micro_batch in micro_batches(batch, plan, 4, minibatch)
        for value in micro_batch.advantages.tolist()
    )
    assert used == sorted(v for group in batch.groups[:3] for v in group.advantages.tolist())


def test_step_tokens_count_the_groups_that_are_left_out() -> None:
    batch = random_batch(2)
    tokens = sum(len(c.ids) for group in batch.groups for c in group.completions)
    assert {m.step_tokens for m in micro_batches(batch, UpdatePlan(), 4, 0)} == {tokens}
