"""Exact maps from uniform numbers in the unit cube to Dirichlet points on the simplex.

Normalised independent Gamma(alpha_k) variables are Dirichlet(alpha); each Gamma variable is the
quantile of one uniform number. Pseudo-random and quasi-random (Sobol) numbers take the same map.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

# Newton steps on the log-quantile stop when the step is smaller (in units of log x).
_TOLERANCE = 1e-13
_MAX_STEPS = 200


def dirichlet_from_uniform(
    uniforms: Float64[Tensor, "K N"], alpha: Float64[Tensor, " K"]
) -> Float64[Tensor, "N K"]:
    """Return N Dirichlet(alpha) points, one uniform number per coordinate.

    ``w_k = x_k / sum_j x_j`` with ``x_k`` the Gamma(alpha_k) quantile of ``u_k``; for alpha = 1
    this is ``x_k = -log u_k`` (normalised exponentials). Works on logarithms for alpha != 1, so
    that a small alpha gives a vertex of the simplex and not 0 / 0.

    Args:
        uniforms: Numbers in (0, 1), objective by objective.
        alpha: Positive concentration of each objective.

    Raises:
        ValueError: A concentration is not positive and finite.
    """
    if not bool((torch.isfinite(alpha) & (alpha > 0)).all()):
        raise ValueError(
            f"Dirichlet needs a positive finite alpha, got {[float(value) for value in alpha]}; "
            "set `weights.alpha`"
        )
    if bool((alpha == 1).all()):
        masses = -torch.log(uniforms)
    else:
        logs = log_gamma_quantile(uniforms, alpha[:, None].to(uniforms.device))
        masses = torch.exp(logs - logs.amax(dim=0))
    return (masses / masses.sum(dim=0)).T


def log_gamma_quantile(
    probability: Float64[Tensor, "*shape"], alpha: Float64[Tensor, "*#shape"]
) -> Float64[Tensor, "*shape"]:
    """Return ``log x`` with ``P(alpha, x) = probability`` (the Gamma(alpha, 1) quantile).

    Newton's method on ``log P(alpha, e^y) - log p``. The function is increasing and concave in y
    (the density of a log-Gamma variable is log-concave) and the start ``(log p + log Gamma(alpha +
    1)) / alpha`` lies left of the root, because ``P(alpha, x) <= x^alpha / Gamma(alpha + 1)``; so
    the steps go right only and cannot overshoot. For tiny x the start is already the answer.
    The result is as good as torch's incomplete gamma function (about nine digits for alpha > 20).

    Args:
        probability: Numbers in (0, 1).
        alpha: Positive shapes, broadcast to ``probability``.
    """
    shape = probability.shape
    target = torch.log(probability).reshape(-1)
    alpha = alpha.expand(shape).reshape(-1)
    result = (target + torch.lgamma(alpha + 1)) / alpha
    # Below, P = x^alpha / Gamma(alpha + 1) holds to the last bit (relative error about x).
    active = torch.nonzero(result > -37.0).squeeze(-1)
    for _ in range(_MAX_STEPS):
        if active.numel() == 0:
            break
        y, a = result[active], alpha[active]
        x = torch.exp(y)
        lower = torch.igamma(a, x)
        slope = torch.exp(a * y - x - torch.lgamma(a)) / lower
        step = ((target[active] - torch.log(lower)) / slope).clamp_min(0.0)
        moves = step > _TOLERANCE
        result[active] = torch.where(moves, y + step, y)
        active = active[moves]
    return result.reshape(shape)


def as_alpha(alpha: float | Sequence[float], num_objectives: int) -> Float[Tensor, " K"]:
    """Return one concentration per objective, in float64.

    Raises:
        ValueError: A sequence of another length than the number of objectives.
    """
    if isinstance(alpha, int | float):
        return torch.full((num_objectives,), float(alpha), dtype=torch.float64)
    if len(alpha) != num_objectives:
        raise ValueError(
            f"alpha has {len(alpha)} entries for {num_objectives} objectives; give one number or "
            "one per objective in `weights.alpha`"
        )
    return torch.tensor([float(value) for value in alpha], dtype=torch.float64)
