"""The call signatures of a method's slots, and the adapter for functions that need less."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol

from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

Parameters = ParamSpec("Parameters")

# What an advantage slot is given besides the scores.
_CONTEXT = frozenset({"rewards", "weights", "lengths", "objective_mask"})


class SetReward(Protocol):
    """The ``set_reward`` slot: one score per rollout from the rewards of its answers."""

    def __call__(
        self,
        rewards: Float[Tensor, "B G M K"],
        weights: Float[Tensor, "B N K"],
        answer_mask: Bool[Tensor, "B G M"] | None = None,
        *,
        objective_mask: Bool[Tensor, "B K"] | None = None,
    ) -> Float64[Tensor, "B G"]:
        """Return the scores."""
        ...


class Advantage(Protocol):
    """The ``advantage`` slot: one advantage per rollout from the scores of its group."""

    def __call__(
        self,
        scores: Float[Tensor, "B G"],
        *,
        rewards: Float[Tensor, "B G M K"],
        weights: Float[Tensor, "B N K"],
        lengths: Int[Tensor, "B G"],
        objective_mask: Bool[Tensor, "B K"],
    ) -> Float64[Tensor, "B G"]:
        """Return the advantages."""
        ...


def scores_only(
    estimator: Callable[Concatenate[Tensor, Parameters], Tensor],
) -> Callable[Concatenate[Tensor, Parameters], Tensor]:
    """Return an estimator of scores that also accepts, and drops, the slot's other arguments.

    Only the four names of the ``Advantage`` slot are dropped: a misspelt setting stays an error.
    """

    @functools.wraps(estimator)
    def slot(scores: Tensor, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Tensor:
        settings = {name: value for name, value in kwargs.items() if name not in _CONTEXT}
        return estimator(scores, *args, **settings)  # pyright: ignore[reportCallIssue]

    return slot
