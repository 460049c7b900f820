"""What k answers, k model calls or so many tokens of a pool are worth, on average.

Three units, because the answers of one completion (chain) are not independent draws:

- answers: k of the pool's answers without replacement, whichever completion they are from. Unbiased
  for "sample C chains, keep k of their answers", an equal answer budget; chains: it depends on C.
- calls: k whole completions. Unbiased for k independent calls, however correlated one's answers.
- tokens: whole completions in random order as long as they fit into the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from vpo_lightning.core.metrics import best_at_k, expected_max_at_k_chains

ORDERS = 32
"""Random orders of completions that a token budget is averaged over."""


@dataclass(frozen=True)
class Scalarizations:
    """What answers are measured with; the same for every pool, k and unit.

    Attributes:
        grid: N weight vectors; E_w[max] is the mean over them.
        named: Weight vectors (K) of scalar scores by name; the name "" is the task's own.
    """

    grid: Float[Tensor, "N K"]
    named: Mapping[str, Float[Tensor, " K"]]

    def without_names(self) -> Scalarizations:
        """These with the task's own scalar score alone."""
        return Scalarizations(self.grid, {"": self.named[""]})


def figures_by_answers(
    rewards: Float[Tensor, "*pools C m K"],
    solved: Bool[Tensor, "*pools C m"],
    scalarizations: Scalarizations,
    ks: Sequence[int],
) -> dict[str, Float64[Tensor, "*pools"]]:
    """Return ``best@k``, ``best@k/<name>``, ``pass@k`` and ``expected_max@k``, k counting answers.

    Args:
        rewards: C completions of m answers.
        solved: Whether each answer solves its prompt.
        scalarizations: Weights.
        ks: Those above the number of answers are left out.
    """
    single = rewards.flatten(-3, -2).unsqueeze(-2)
    return figures_by_calls(single, solved.flatten(-2).unsqueeze(-1), scalarizations, ks, unit="")


def figures_by_calls(
    rewards: Float[Tensor, "*pools C m K"],
    solved: Bool[Tensor, "*pools C m"],
    scalarizations: Scalarizations,
    ks: Sequence[int],
    unit: str = "_calls",
) -> dict[str, Float64[Tensor, "*pools"]]:
    """Return the same figures, ``best@k_calls`` and so on, k counting whole completions."""
    ks = [k for k in ks if k <= rewards.shape[-3]]
    if not ks:
        return {}
    columns = {
        f"best@{{}}{unit}{'/' * bool(name)}{name}": best_at_k((rewards.double() @ w).amax(-1), ks)
        for name, w in scalarizations.named.items()
    }
    columns[f"pass@{{}}{unit}"] = best_at_k(solved.any(-1).double(), ks)
    columns[f"expected_max@{{}}{unit}"] = expected_max_at_k_chains(rewards, scalarizations.grid, ks)
    return {
        key.format(k): values[..., i] for key, values in columns.items() for i, k in enumerate(ks)
    }


def figures_by_tokens(
    rewards: Float[Tensor, "C m K"],
    solved: Bool[Tensor, "C m"],
    tokens: Sequence[int],
    scalarizations: Scalarizations,
    budgets: Sequence[int],
    seed: int = 0,
) -> dict[str, float]:
    """Return ``best@T_tokens``, ``pass@T_tokens`` and ``expected_max@T_tokens`` of one pool.

    The mean over random orders of its completions, the same orders for every pool of C: those of an
    order count that fit into T tokens together before the first that does not; none is worth 0.

    Args:
        rewards: C completions of m answers.
        solved: Whether each answer solves its prompt.
        tokens: Of each completion.
        scalarizations: Weights; of the named ones only the task's own is used.
        budgets: Tokens; those above the whole pool's are left out.
        seed: Of the orders.
    """
    budgets = [budget for budget in budgets if budget <= sum(tokens)]
    if not budgets:
        return {}
    columns = torch.cat(
        [
            (rewards.double() @ scalarizations.named[""]).amax(1)[:, None],
            solved.any(1).double()[:, None],
            (rewards.double() @ scalarizations.grid.T).amax(1),
        ],
        dim=1,
    )
    generator = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.randperm(len(tokens), generator=generator) for _ in range(ORDERS)])
    spent = torch.tensor(tokens)[orders].cumsum(1)
    none = torch.zeros(ORDERS, columns.shape[1], 1)
    best = torch.cat([none, columns[orders].transpose(1, 2).contiguous().cummax(2).values], 2)
    figures: dict[str, float] = {}
    for budget in budgets:
        fitting = (spent <= budget).sum(1)
        scalar, passed, *values = best[torch.arange(ORDERS), :, fitting].mean(0).tolist()
        figures[f"best@{budget}_tokens"] = scalar
        figures[f"pass@{budget}_tokens"] = passed
        figures[f"expected_max@{budget}_tokens"] = sum(values) / len(values)
    return figures


def without_each_call(values: Tensor, dim: int) -> Tensor:
    """Return copies of `values` without each of its C completions, stacked in front of `dim`.

    Args:
        values: A tensor with an axis of C completions.
        dim: That axis, not negative.
    """
    count = values.shape[dim]
    kept = torch.tensor([[j for j in range(count) if j != i] for i in range(count)])
    return values.index_select(dim, kept.flatten()).unflatten(dim, (count, count - 1))
