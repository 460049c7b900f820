"""From losses per token to the scalar of one optimizer step, independent of how it is split.

The denominators belong to the whole optimizer step: every micro-batch on every process divides
by the same ``StepTotals``, so the micro-batch losses, and their gradients, add up to those of one
big batch.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Bool, Float
from torch import Tensor

Aggregation = Literal[
    "token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"
]
AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)


@dataclass(frozen=True)
class StepTotals:
    """Denominators of one optimizer step, over all its micro-batches and processes.

    Attributes:
        num_tokens: Tokens inside the mask.
        num_rows: Rows (rollouts) with at least one token inside the mask.
    """

    num_tokens: int
    num_rows: int

    def __add__(self, other: "StepTotals") -> "StepTotals":
        return StepTotals(self.num_tokens + other.num_tokens, self.num_rows + other.num_rows)


def step_totals(mask: Bool[Tensor, "R T"]) -> StepTotals:
    """Return the totals of one micro-batch; add those of a step's micro-batches and processes.

    A row that is outside the mask altogether (a dropped, truncated rollout) counts nowhere, so the
    loss with such a row is the loss without it.
    """
    return StepTotals(int(mask.sum()), int(mask.any(dim=-1).sum()))


def aggregate(
    losses: Float[Tensor, "R T"],
    mask: Bool[Tensor, "R T"],
    totals: StepTotals | None = None,
    *,
    aggregation: Aggregation = "token_mean",
    max_tokens: int | None = None,
) -> Float[Tensor, ""]:
    """Return this micro-batch's part of the step's loss; the parts add up to the loss.

    - ``token_mean``: sum over tokens / tokens of the step (DAPO; the paper's setting).
    - ``seq_mean_token_mean``: mean over each row's tokens, summed / rows of the step (GRPO, GSPO).
    - ``seq_mean_token_sum``: sum over each row's tokens, summed / rows of the step.
    - ``seq_mean_token_sum_norm``: the same divided by the constant ``max_tokens`` (Dr.GRPO,
      arXiv:2503.20783), so a row's length does not change the weight of its tokens.

    Args:
        losses: Per token.
        mask: True for the tokens that count.
        totals: Of the whole optimizer step; None takes this micro-batch as the whole step.
        aggregation: Which mean.
        max_tokens: Completion length limit in tokens; only for ``seq_mean_token_sum_norm``.

    Raises:
        ValueError: An unknown aggregation, or ``max_tokens`` missing or below 1.
    """
    totals = step_totals(mask) if totals is None else totals
    return numerator(losses, mask, aggregation) / denominator(totals, aggregation, max_tokens)


def numerator(
    losses: Float[Tensor, "R T"], mask: Bool[Tensor, "R T"], aggregation: str = "token_mean"
) -> Float[Tensor, ""]:
    """Return what a micro-batch adds to the step's loss before the division by ``denominator``.

    The sum over tokens; only ``seq_mean_token_mean`` divides each row by its own tokens first.

    Raises:
        ValueError: An unknown aggregation.
    """
    _check_name(aggregation)
    kept = losses.masked_fill(~mask, 0.0)
    if aggregation == "seq_mean_token_mean":
        return (kept.sum(dim=-1) / mask.sum(dim=-1).clamp_min(1)).sum()
    return kept.sum()


def denominator(
    totals: StepTotals, aggregation: str = "token_mean", max_tokens: int | None = None
) -> int:
    """Return what the step's numerators are divided by: tokens, rows, or rows times a length.

    At least 1, so that a step without tokens has loss 0.

    Raises:
        ValueError: An unknown aggregation, or ``max_tokens`` missing or below 1.
    """
    _check_name(aggregation)
    if aggregation == "token_mean":
        return max(totals.num_tokens, 1)
    if aggregation != "seq_mean_token_sum_norm":
        return max(totals.num_rows, 1)
    if max_tokens is None or max_tokens < 1:
        raise ValueError(
            f"{aggregation} needs the completion length limit, got {max_tokens}; set "
            "`loss.max_tokens`"
        )
    return max(totals.num_rows, 1) * max_tokens


def _check_name(aggregation: str) -> None:
    if aggregation not in AGGREGATIONS:
        raise ValueError(
            f"aggregation is {aggregation!r}; set `loss.aggregation` to one of "
            f"{', '.join(AGGREGATIONS)}"
        )
