"""Aggregation over tokens: exact values, and independence of micro-batches."""

import inspect
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from vpo_lightning.core.aggregation import Aggregation, StepTotals, aggregate, step_totals
from vpo_lightning.core.masks import drop_truncated, length_mask

LOSSES = torch.tensor([[1, 2, 0, 0], [3, 4, 5, 6]], dtype=torch.float64)
MASK = length_mask(torch.tensor([2, 4]), 4)
AGGREGATIONS: list[Aggregation] = [
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "seq_mean_token_sum_norm",
]
every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)


def bound(aggregation: Aggregation) -> Callable[..., Tensor]:
    limit = 8 if aggregation == "seq_mean_token_sum_norm" else None
    return partial(aggregate, aggregation=aggregation, max_tokens=limit)


@pytest.mark.parametrize(
    ("aggregation", "expected"), list(zip(AGGREGATIONS, [3.5, 3.0, 10.5, 1.3125], strict=True))
)
def test_aggregations_have_their_exact_values(aggregation: Aggregation, expected: float) -> None:
    assert float(bound(aggregation)(LOSSES, MASK)) == pytest.approx(expected, rel=1e-12)


@every_aggregation
@pytest.mark.parametrize("split", [1, 2, 3, 4, 8])
def test_gradients_do_not_depend_on_the_split_into_micro_batches(
    aggregation: Aggregation, split: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([1, 12, 3, 7, 0, 5, 9, 2])
    mask = length_mask(lengths, 12)
    values = torch.rand(8, 12, dtype=torch.float64, generator=generator)

    def gradient(size: int) -> tuple[Tensor, float]:
        leaf = values.clone().requires_grad_()
        totals = sum(map(step_totals, mask.split(size)), StepTotals(0, 0))
        parts = [
            bound(aggregation)(loss.square(), part, totals)
            for loss, part in zip(leaf.split(size), mask.split(size), strict=True)
        ]
        for part in parts:
            part.backward(retain_graph=True)
        assert leaf.grad is not None
        return leaf.grad, float(sum(part.detach() for part in parts))

    whole, split_up = gradient(8), gradient(split)
    torch.testing.assert_close(split_up[0], whole[0], rtol=1e-12, atol=1e-15)
    assert split_up[1] == pytest.approx(whole[1], rel=1e-12)


@every_aggregation
def test_a_masked_row_is_like_no_row(aggregation: Aggregation) -> None:
    truncated = torch.tensor([False, True])
    masked = bound(aggregation)(LOSSES, drop_truncated(MASK, truncated))
    assert float(masked) == float(bound(aggregation)(LOSSES[:1], MASK[:1]))


@every_aggregation
def test_values_outside_the_mask_do_not_matter(aggregation: Aggregation) -> None:
    filled = torch.where(MASK, LOSSES, torch.nan)
    assert float(bound(aggregation)(filled, MASK)) == float(bound(aggregation)(LOSSES, MASK))


@every_aggregation
def test_a_step_without_tokens_has_loss_0(aggregation: Aggregation) -> None:
    assert float(bound(aggregation)(LOSSES, torch.zeros_like(MASK))) == 0


def test_totals_add_up_over_micro_batches() -> None:
    assert step_totals(MASK) == StepTotals(num_tokens=6, num_rows=2)
    assert step_totals(MASK[:1]) + step_totals(MASK[1:]) == step_totals(MASK)


def test_a_constant_needs_the_length_limit() -> None:
    with pytest.raises(ValueError, match=r"set `loss\.max_tokens`"):
        aggregate(LOSSES, MASK, aggregation="seq_mean_token_sum_norm")
    with pytest.raises(ValueError, match=r"aggregation is 'mean'"):
        inspect.unwrap(aggregate)(LOSSES, MASK, aggregation="mean")  # pyright: ignore
