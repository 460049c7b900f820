"""How much there is to learn in a batch of groups: groups without signal, guarded rollouts."""

from jaxtyping import Bool, Float
from torch import Tensor

NO_SIGNAL = 1e-9
"""Advantages (and their differences) up to this are rounding."""


def signal_report(
    scores: Float[Tensor, "*groups G"],
    advantages: Float[Tensor, "*groups G"],
    floor: float = 1e-6,
) -> dict[str, float]:
    """Return what to log about the scores of a batch and the advantages made from them.

    - ``zero_std_fraction``: of the groups, those whose population std is below ``floor``.
    - ``zero_advantage_fraction``: of the groups, those without any non-zero advantage.
    - ``guarded_fraction``: of the rollouts, those with advantage 0 although their score differs
      from the mean of their group by more than ``floor``: a guard of the estimator held them back.
    - ``max_abs_advantage``: the largest magnitude; above ``sqrt(G - 1)`` it is no group z-norm.

    Args:
        scores: One score per rollout.
        advantages: Of the same rollouts.
        floor: Scores closer than this are equal.
    """
    values, weights = scores.double(), advantages.double()
    if values.numel() == 0:
        names = ("zero_std", "zero_advantage", "guarded")
        return {f"{name}_fraction": 0.0 for name in names} | {"max_abs_advantage": 0.0}
    away = (values - values.mean(dim=-1, keepdim=True)).abs() > floor
    return {
        "zero_std_fraction": _mean(values.std(dim=-1, correction=0) < floor),
        "zero_advantage_fraction": 1.0 - _mean(groups_with_signal(weights)),
        "guarded_fraction": _mean((weights == 0) & away),
        "max_abs_advantage": float(weights.abs().max()),
    }


def groups_with_signal(advantages: Float[Tensor, "*groups G"]) -> Bool[Tensor, "*groups"]:
    """Return which groups have an advantage that is not 0 (up to rounding, ``NO_SIGNAL``).

    The KL penalty pulls every rollout to the reference policy, those of groups without signal too.
    Multiply its mask by this one to leave such groups alone.
    """
    return (advantages.abs() > NO_SIGNAL).any(dim=-1)


def groups_with_contrast(advantages: Float[Tensor, "*groups G"]) -> Bool[Tensor, "*groups"]:
    """Return which groups hold rollouts that are credited differently.

    This is what DAPO's filter asks for (arXiv:2503.14476). It is the signal, except for GDPO: its
    whitening may move all rollouts of a group by the same amount, which prefers none of them. A
    group of one has a contrast if it has a signal.
    """
    if advantages.shape[-1] == 1:
        return groups_with_signal(advantages)
    return advantages.amax(dim=-1) - advantages.amin(dim=-1) > NO_SIGNAL


def _mean(flags: Bool[Tensor, "..."]) -> float:
    return float(flags.double().mean())
