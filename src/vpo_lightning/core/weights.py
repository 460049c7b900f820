"""Samplers of scalarization weights: N points on the simplex of K objectives.

Every sampler is called as ``sampler(num_objectives, source, *, step=0)`` and is put into a config
slot with ``_partial_: true``. ``source`` is either a ``torch.Generator``, giving weights (N, K), or
a tensor of seeds, one per prompt group, giving one (N, K) matrix per seed in one vectorised call,
bit for bit what each seed gives alone (so draws do not depend on which prompts share a batch).
``num_objectives`` may differ between groups (a tensor shaped like the seeds): weights are drawn
over a group's own objectives and the columns behind them are exactly 0.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.quasirandom import SobolEngine

from vpo_lightning.core.draws import (
    DrawGroups,
    Objectives,
    Source,
    dirichlet_group_by_group,
    dirichlet_points,
    draw_groups,
)


def fixed(
    num_objectives: Objectives,
    source: Source,
    *,
    step: int = 0,
    weights: Sequence[float] | None = None,
    normalize: bool = True,
) -> Float64[Tensor, "*groups N K"]:
    """Return the same single weight vector (N = 1) for every group.

    Args:
        num_objectives: K, or one K per group (only without ``weights``).
        source: Read for the number of groups only; nothing is random.
        step: Not used.
        weights: Non-negative importance of each objective; None is the uniform mean, 1 / K each.
        normalize: Divide the weights by their sum. Keep False to use them as given, e.g. ones for
            the sum of the objectives: a group's z-norm is the same up to its epsilon.

    Raises:
        ValueError: The number of weights is not K, or one is negative or not finite, or all are 0.
    """
    del step
    groups = draw_groups(num_objectives, source)
    if weights is None:
        present = groups.present()
        vector = present / present.sum(dim=-1, keepdim=True) if normalize else present
        return vector.unsqueeze(-2)
    vector = torch.tensor([float(weight) for weight in weights], dtype=torch.float64)
    if not bool((groups.counts == len(vector)).all()):
        raise ValueError(
            f"{len(vector)} fixed weights were given for {groups.describe_counts()} objectives; "
            "set `weights.weights` to one number per objective, or to null for their mean"
        )
    if not bool((torch.isfinite(vector) & (vector >= 0)).all()) or float(vector.sum()) <= 0:
        raise ValueError(
            f"fixed weights must be finite, not negative and not all 0, got {list(weights)}; "
            "set `weights.weights`"
        )
    vector = vector / vector.sum() if normalize else vector
    return vector.to(groups.seeds.device).expand(*groups.seeds.shape, 1, -1).clone()


def dirichlet(
    num_objectives: Objectives,
    source: Source,
    *,
    step: int = 0,
    alpha: float | Sequence[float] = 1.0,
    num_draws: int = 100,
) -> Float64[Tensor, "*groups N K"]:
    """Return N independent Dirichlet(alpha) draws (the paper's sampler: alpha 1, N 100).

    For alpha = 1, the uniform distribution on the simplex, these are normalised exponentials.

    Args:
        num_objectives: K, or one K per group.
        source: Seeds of the groups, or a generator.
        step: Not used.
        alpha: Concentration, one number or one per objective; below 1 favours the vertices.
        num_draws: N.

    Raises:
        ValueError: alpha is not positive, has the wrong length, or ``num_draws`` is below 1.
    """
    del step
    _require_draws(num_draws)
    return dirichlet_points(draw_groups(num_objectives, source), alpha, num_draws)


def sobol(
    num_objectives: Objectives,
    source: Source,
    *,
    step: int = 0,
    alpha: float | Sequence[float] = 1.0,
    num_draws: int = 100,
) -> Float64[Tensor, "*groups N K"]:
    """Return N quasi-random Dirichlet(alpha) points: a scrambled Sobol net mapped to the simplex.

    Each group has its own scrambling, so the mean over draws is unbiased; its error is smaller than
    that of independent draws, most so when N is a power of two.

    Args:
        num_objectives: K, or one K per group.
        source: Seeds of the groups, or a generator.
        step: Not used.
        alpha: Concentration, one number or one per objective.
        num_draws: N.

    Raises:
        ValueError: alpha is not positive, has the wrong length, or ``num_draws`` is below 1.
    """
    del step
    _require_draws(num_draws)

    def net(group: DrawGroups) -> Float64[Tensor, "K N"]:
        engine = SobolEngine(group.width, scramble=True, seed=int(group.seeds))
        points = engine.draw(num_draws, dtype=torch.float64).T.to(group.seeds.device)
        # The net lives on multiples of 2**-30 from 0: half a cell keeps logarithms finite.
        return (points + 2.0**-31).clamp_max(1 - 2.0**-31)

    return dirichlet_group_by_group(draw_groups(num_objectives, source), alpha, net)


def random_subset(
    num_objectives: Objectives, source: Source, *, step: int = 0, num_draws: int = 100
) -> Float64[Tensor, "*groups N K"]:
    """Return N weight vectors, each uniform on a random non-empty subset of the objectives.

    All ``2**K - 1`` subsets are equally likely. One objective after the other joins with
    probability 1/2 once the subset has a member, and before that with probability ``2**(m - 1) /
    (2**m - 1)`` where m objectives are left, which is the conditional probability of not ending up
    empty.

    Args:
        num_objectives: K, or one K per group.
        source: Seeds of the groups, or a generator.
        step: Not used.
        num_draws: N.

    Raises:
        ValueError: ``num_draws`` is below 1.
    """
    del step
    _require_draws(num_draws)
    groups = draw_groups(num_objectives, source)
    uniforms = groups.uniforms(num_draws)
    members = torch.zeros_like(uniforms, dtype=torch.bool)
    empty = torch.ones_like(uniforms[..., 0, :], dtype=torch.bool) if groups.width else members
    for k in range(groups.width):
        left = (groups.counts - k).double()[..., None]
        # 2**(m - 1) / (2**m - 1) without overflow for many objectives.
        first = 1 / (2 - torch.exp2(1 - left))
        joins = uniforms[..., k, :] < torch.where(empty, first, 0.5)
        members[..., k, :] = joins & (left > 0)
        empty &= ~members[..., k, :]
    chosen = members.double().transpose(-1, -2)
    return chosen / chosen.sum(dim=-1, keepdim=True)


def annealed_dirichlet(
    num_objectives: Objectives,
    source: Source,
    *,
    total_steps: int,
    deployment_weights: Sequence[float] | None = None,
    step: int = 0,
    alpha: float | Sequence[float] = 1.0,
    num_draws: int = 100,
) -> Float64[Tensor, "*groups N K"]:
    """Return Dirichlet(alpha) draws that move linearly to the weights used after training.

    ``w(step) = (1 - t) w_dirichlet + t w_deployment`` with ``t = min(step / total_steps, 1)``: the
    mean moves and the spread shrinks linearly; from ``total_steps`` on one fixed scalarization is
    trained. Steps count from 0.

    Args:
        num_objectives: K, or one K per group (only without ``deployment_weights``).
        source: Seeds of the groups, or a generator.
        total_steps: Optimizer steps after which the weights are the deployment weights.
        deployment_weights: Divided by their sum; None is the uniform mean.
        step: Current optimizer step.
        alpha: Concentration of the draws.
        num_draws: N.

    Raises:
        ValueError: ``total_steps`` is below 1, ``step`` is negative; or as in ``dirichlet``.
    """
    if total_steps < 1 or step < 0:
        raise ValueError(
            f"annealing needs total_steps >= 1 and step >= 0, got {total_steps} and {step}; set "
            "`weights.total_steps`"
        )
    draws = dirichlet(num_objectives, source, alpha=alpha, num_draws=num_draws)
    target = fixed(num_objectives, source, weights=deployment_weights)
    return torch.lerp(draws, target.expand_as(draws), min(step / total_steps, 1.0))


def _require_draws(num_draws: int) -> None:
    if num_draws < 1:
        raise ValueError(f"num_draws must be at least 1, got {num_draws}; set `weights.num_draws`")
