"""Intervals of means over prompts, and paired comparisons on the same prompts.

Prompts are the clusters: the answers of one prompt are dependent, and the spread of its estimate
over prompts holds both the prompts' own and the sampling of their completions. What sampling alone
adds is estimated by leaving out one completion (chain) at a time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import torch
from jaxtyping import Float
from torch import Tensor

CONFIDENCE = 0.95
_EXACT_FLIPS = 12
_RANDOM_FLIPS = 10_000


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts with its 95% interval.

    Attributes:
        mean: Over prompts.
        low: Lower end; None where one prompt gives no spread.
        high: Upper end.
        sampling_error: Standard error due to the sampled completions alone, prompts held fixed;
            None where it cannot be had (k needs every completion).
    """

    mean: float
    low: float | None
    high: float | None
    sampling_error: float | None = None


@dataclass(frozen=True)
class Difference:
    """The mean difference of a figure over shared prompts.

    Attributes:
        difference: Mean over prompts of the first minus the second.
        low: Lower end of the 95% interval.
        high: Upper end.
        p: Of the permutation test that swaps the two in each prompt at random.
    """

    difference: float
    low: float
    high: float
    p: float


def estimate(values: Sequence[float], errors: Sequence[float] | None = None) -> Estimate:
    """The mean of one figure over prompts: Student's t over prompts, each one cluster.

    With one prompt the interval is that of its completions, by the normal distribution.

    Args:
        values: One for each prompt.
        errors: Standard error of each due to its sampled completions.
    """
    mean = fmean(values)
    sampling = None if errors is None else math.hypot(*errors) / len(values)
    if len(values) > 1:
        half = student_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    elif sampling is not None:
        half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * sampling
    else:
        return Estimate(mean, None, None)
    return Estimate(mean, mean - half, mean + half, sampling)


def paired(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Difference:
    """The difference of a figure on the same prompts, in the same order.

    The p-value counts sign changes of the prompts' differences that give a mean at least as far
    from 0: all of them up to 12 prompts, else 10,000 random ones (the observed one included).

    Raises:
        ValueError: Fewer than two prompts, or unequal numbers of them.
    """
    if len(first) != len(second) or len(first) < 2:
        raise ValueError(
            f"{len(first)} and {len(second)} prompts; a paired comparison needs the same ones, at "
            "least two"
        )
    gaps = [a - b for a, b in zip(first, second, strict=True)]
    whole = estimate(gaps)
    assert whole.low is not None
    assert whole.high is not None
    return Difference(whole.mean, whole.low, whole.high, _sign_flip_p(gaps, seed))


def jackknife_error(without_one: Float[Tensor, "*prompts C"]) -> Float[Tensor, "*prompts"]:
    """Return the standard error from the C estimates that leave out one completion each.

    ``sqrt((C - 1) / C sum_c (t_c - mean t)^2)`` (Efron and Stein 1981); on average it is not too
    small, also for best@k.
    """
    count = without_one.shape[-1]
    centred = without_one - without_one.mean(-1, keepdim=True)
    return (centred.square().sum(-1) * ((count - 1) / count)).sqrt()


def student_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The two-sided quantile of Student's t: 1.984 for 100 degrees of freedom at 95%.

    Exact for 1 and 2 degrees; else the expansion in 1 / freedom of Abramowitz and Stegun 26.7.5,
    whose relative error at 95% is 1% for 3 degrees and falls fast.
    """
    upper = (1 + confidence) / 2
    if freedom == 1:
        return math.tan(math.pi * (upper - 0.5))
    if freedom == 2:
        return (2 * upper - 1) * math.sqrt(2 / (4 * upper * (1 - upper)))
    z, n = NormalDist().inv_cdf(upper), float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def _sign_flip_p(gaps: Sequence[float], seed: int) -> float:
    means = (_signs(len(gaps), seed) @ torch.tensor(gaps, dtype=torch.float64)).abs()
    # Sums that are equal but for rounding count as equal.
    return float((means >= means[0] - 1e-12 * max(1.0, float(means[0]))).double().mean())


@functools.lru_cache(maxsize=4)
def _signs(count: int, seed: int) -> Float[Tensor, "flips {count}"]:
    """Sign changes of so many prompts, the first without any; all, or random ones."""
    if count <= _EXACT_FLIPS:
        bits = torch.arange(2**count)[:, None] >> torch.arange(count) & 1
    else:
        generator = torch.Generator().manual_seed(seed)
        bits = torch.randint(2, (_RANDOM_FLIPS, count), generator=generator)
        bits[0] = 0
    return (1 - 2 * bits).double()
