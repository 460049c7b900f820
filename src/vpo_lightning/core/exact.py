"""The expected maximum over the whole weight simplex without sampling, for few objectives.

For weights uniform on the simplex (Dirichlet with alpha = 1) ``E_w[max_s w . r_s]`` is the integral
of a piecewise linear function. The simplex is cut into pieces on which one answer is the best; each
piece is a simplex, over which the integral of a linear function is its volume times the mean over
its vertices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from vpo_lightning.core.groups import prepare_groups
from vpo_lightning.core.validation import require_finite

# The number of pieces grows by about the same factor with every further objective.
MAX_OBJECTIVES = 5
# Differences of scalarized rewards below this fraction of the largest reward are rounding.
_RELATIVE_TOLERANCE = 1e-14
# The closed form loses about (1 / gap)^(K - 1) of its digits.
_SMALLEST_GAP = 0.05
# Answer sets cut at a time, times the square of their size: bounds the memory of the pieces.
_CHUNK_PAIRS = 2048


def exact_expected_max(
    rewards: Float[Tensor, "*sets M K"], answer_mask: Bool[Tensor, "*sets M"] | None = None
) -> Float64[Tensor, "*sets"]:
    """Return ``E_w[max_s w . r_s]`` for w uniform on the simplex, exact up to rounding.

    The unit vectors of K objectives give ``H_K / K`` (0.75 for two). A set without answers gives 0.

    Args:
        rewards: Sets of M reward vectors, K at most 5.
        answer_mask: True where an answer exists; None if all do.

    Raises:
        ValueError: More than 5 objectives, or a NaN or infinite reward.
    """
    values, _ = _integrate(rewards, answer_mask)
    return values


def exact_win_shares(
    rewards: Float[Tensor, "*sets M K"], answer_mask: Bool[Tensor, "*sets M"] | None = None
) -> Float64[Tensor, "*sets M"]:
    """Return the share of the simplex on which each answer is the best; equal answers share theirs.

    Raises:
        ValueError: More than 5 objectives, or a NaN or infinite reward.
    """
    _, shares = _integrate(rewards, answer_mask)
    same = (rewards[..., :, None, :] == rewards[..., None, :, :]).all(dim=-1)
    if answer_mask is not None:
        same = same & answer_mask[..., None, :] & answer_mask[..., :, None]
    same = same.double()
    return (same * shares[..., None, :]).sum(dim=-1) / same.sum(dim=-1).clamp_min(1)


def expected_max_of_two(
    first: Float[Tensor, " K"], second: Float[Tensor, " K"]
) -> Float64[Tensor, ""]:
    """Return ``E_w[max(w . a, w . b)]``, w uniform on the simplex, in closed form for any K.

    With ``d = a - b``: ``mean(b) + (1 / K) sum_{i: d_i > 0} d_i^K / prod_{j != i} (d_i - d_j)``, a
    divided difference of ``max(x, 0)^K / K`` (Hermite-Genocchi). Entries of d closer than 0.05
    times the largest cancel digits: then, and for equal entries, the simplex is cut instead.

    Raises:
        ValueError: NaN or infinite rewards, or close entries of d with more than 5 objectives.
    """
    pair = torch.stack([first, second]).double()
    require_finite(pair, "the reward", ("answer", "objective"))
    difference = pair[0] - pair[1]
    count = len(difference)
    itself = torch.eye(count, dtype=torch.bool, device=difference.device)
    gaps = (difference[:, None] - difference[None, :]).masked_fill(itself, 1.0)
    if count > 1 and bool(
        (gaps.abs() <= _SMALLEST_GAP * difference.abs().max()).masked_fill(itself, False).any()
    ):
        return exact_expected_max(pair)
    terms = difference.clamp_min(0.0) ** count / gaps.prod(dim=1)
    return pair[1].mean() + terms.sum() / count


def exact_set_reward(
    rewards: Float[Tensor, "*groups G M K"],
    weights: Float[Tensor, "*#groups N _K"],
    answer_mask: Bool[Tensor, "*groups G M"] | None = None,
    *,
    objective_mask: Bool[Tensor, "*groups K"] | None = None,
    prompt_ids: Sequence[str] | None = None,
) -> Float64[Tensor, "*groups G"]:
    """Return VPO's set reward without Monte Carlo noise: the limit of many Dirichlet(1) draws.

    Fills a ``set_reward`` slot; the weights are checked and not used. Prompts may have different
    objectives, each at most 5 of its own.

    Raises:
        ValueError: As ``scalarization.set_reward``; or a prompt with more than 5 objectives.
    """
    groups = prepare_groups(rewards, weights, answer_mask, objective_mask, prompt_ids)
    scores = groups.zero_scores()
    left = torch.ones(len(scores), dtype=torch.bool, device=scores.device)
    while bool(left.any()):
        own = groups.objective_mask[left][0]
        rows = (groups.objective_mask == own).all(dim=-1)
        scores[rows] = exact_expected_max(groups.rewards[rows][..., own], groups.answer_mask[rows])
        left &= ~rows
    return groups.ungroup(scores)


@dataclass(frozen=True)
class _Pieces:
    """Simplices inside the weight simplices of several answer sets.

    Attributes:
        vertices: Weight vectors of the K corners of each piece.
        volume: Fraction of the whole weight simplex.
        owner: The answer set.
        best: The answer that is the best on the piece, among those looked at.
    """

    vertices: Float64[Tensor, "P V K"]
    volume: Float64[Tensor, " P"]
    owner: Int64[Tensor, " P"]
    best: Int64[Tensor, " P"]

    def select(self, rows: Tensor) -> "_Pieces":
        return _Pieces(self.vertices[rows], self.volume[rows], self.owner[rows], self.best[rows])

    @staticmethod
    def join(parts: Sequence["_Pieces"]) -> "_Pieces":
        return _Pieces(
            torch.cat([part.vertices for part in parts]),
            torch.cat([part.volume for part in parts]),
            torch.cat([part.owner for part in parts]),
            torch.cat([part.best for part in parts]),
        )


def _integrate(
    rewards: Float[Tensor, "*sets M K"], answer_mask: Bool[Tensor, "*sets M"] | None
) -> tuple[Float64[Tensor, "*sets"], Float64[Tensor, "*sets M"]]:
    answers, objectives = rewards.shape[-2:]
    if objectives > MAX_OBJECTIVES:
        raise ValueError(
            f"the exact expected maximum takes at most {MAX_OBJECTIVES} objectives, got "
            f"{objectives}; use `core.scalarization.set_reward` with `weights: sobol` instead"
        )
    leading = rewards.shape[:-2]
    flat = rewards.reshape(leading.numel(), answers, objectives).double()
    mask = torch.ones_like(flat[..., 0], dtype=torch.bool)
    if answer_mask is not None:
        mask = answer_mask.reshape(flat.shape[:2])
        flat = flat.masked_fill(~mask[..., None], 0.0)
    require_finite(flat, "the reward", ("answer", "objective"))
    values, shares = flat.new_zeros(len(flat)), flat.new_zeros(len(flat), answers)
    sets = max(1, _CHUNK_PAIRS // max(answers, 1) ** 2)
    for first in range(0, len(flat) if answers else 0, sets):
        chunk = slice(first, first + sets)
        pieces = _partition(flat[chunk], mask[chunk])
        means = (pieces.vertices.mean(dim=1) * flat[chunk][pieces.owner, pieces.best]).sum(dim=-1)
        values[chunk] = values[chunk].index_add(0, pieces.owner, means * pieces.volume)
        cells = shares[chunk].reshape(-1)
        cells = cells.index_add(0, pieces.owner * answers + pieces.best, pieces.volume)
        shares[chunk] = cells.reshape(-1, answers)
    return values.reshape(leading), shares.masked_fill(~mask, 0.0).reshape(*leading, answers)


def _partition(rewards: Float64[Tensor, "S M K"], mask: Bool[Tensor, "S M"]) -> _Pieces:
    """Return pieces of the simplex of each set on which one answer is the best.

    Each answer starts with the whole simplex and keeps, against one rival after the other, the side
    on which it is not worse. Of equal answers the first keeps everything.
    """
    answers, objectives = rewards.shape[1:]
    owner, best = torch.nonzero(mask, as_tuple=True)
    corners = torch.eye(objectives, dtype=torch.float64, device=rewards.device)
    pieces = _Pieces(corners.expand(len(owner), -1, -1), rewards.new_ones(len(owner)), owner, best)
    tolerance = _RELATIVE_TOLERANCE * rewards.abs().amax(dim=(1, 2))
    for rival in range(answers):
        change = rewards[pieces.owner, rival] - rewards[pieces.owner, pieces.best]
        gains = torch.einsum("pvk,pk->pv", pieces.vertices, change)
        gains = torch.where(gains.abs() <= tolerance[pieces.owner, None], 0.0, gains)
        tied_and_later = (gains == 0).all(dim=-1) & (pieces.best > rival)
        gains = gains.masked_fill(tied_and_later[:, None], 1.0)
        gains = gains.masked_fill(~mask[pieces.owner, rival][:, None], -1.0)
        pieces = _keep_losing_side(pieces, gains)
    return pieces


def _keep_losing_side(pieces: _Pieces, gains: Float64[Tensor, "P V"]) -> _Pieces:
    """Return the parts of the pieces where the gain, given at the corners, is not positive.

    A piece with corners of both signs is cut in two at the zero of the edge between its largest and
    smallest gain. Each half has one corner of non-zero gain less, so at most K - 1 rounds follow.
    """
    kept: list[_Pieces] = []
    while True:
        positive = gains.amax(dim=1) > 0
        kept.append(pieces.select(~positive))
        mixed = positive & (gains.amin(dim=1) < 0)
        if not bool(mixed.any()):
            return _Pieces.join(kept)
        pieces, gains = pieces.select(mixed), gains[mixed]
        rows = torch.arange(len(gains), device=gains.device)
        high, low = gains.argmax(dim=1), gains.argmin(dim=1)
        share = gains[rows, high] / (gains[rows, high] - gains[rows, low])
        zero = torch.lerp(pieces.vertices[rows, high], pieces.vertices[rows, low], share[:, None])
        halves: list[_Pieces] = []
        half_gains: list[Tensor] = []
        for corner, fraction in ((low, share), (high, 1 - share)):
            vertices, remaining = pieces.vertices.clone(), gains.clone()
            vertices[rows, corner], remaining[rows, corner] = zero, 0.0
            volume = pieces.volume * fraction
            halves.append(_Pieces(vertices, volume, pieces.owner, pieces.best))
            half_gains.append(remaining)
        pieces, gains = _Pieces.join(halves), torch.cat(half_gains)
