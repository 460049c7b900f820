"""The prompt groups that weights are drawn for, and the ways to draw for many of them at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from vpo_lightning.core.seeding import counter_uniform
from vpo_lightning.core.simplex import as_alpha, dirichlet_from_uniform

Source = torch.Generator | Int64[Tensor, "*groups"]
Objectives = int | Int64[Tensor, "*groups"]

# Numbers drawn at a time: bounds the memory beside the result.
_BLOCK_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class DrawGroups:
    """Seeds and numbers of objectives of prompt groups.

    Attributes:
        seeds: One per group; no axis for a single group.
        counts: Objectives of each group.
        width: K, the largest count.
    """

    seeds: Int64[Tensor, "*groups"]
    counts: Int64[Tensor, "*groups"]
    width: int

    def uniforms(self, num_draws: int) -> Float64[Tensor, "*groups K N"]:
        """Return uniform numbers for each objective and draw, those of padding included.

        An objective's numbers stand together in the stream, so padding leaves the others unchanged.
        """
        numbers = counter_uniform(self.seeds, self.width * num_draws)
        return numbers.reshape(*self.seeds.shape, self.width, num_draws)

    def present(self) -> Float64[Tensor, "*groups K"]:
        """Return 1 for each group's own objectives and 0 for padding."""
        return (
            torch.arange(self.width, device=self.counts.device) < self.counts[..., None]
        ).double()

    def describe_counts(self) -> str:
        """Return the numbers of objectives in words."""
        least, most = int(self.counts.min()), int(self.counts.max())
        return str(least) if least == most else f"{least} to {most}"


def draw_groups(num_objectives: Objectives, source: Source) -> DrawGroups:
    """Return the groups of a sampler call; a generator is one group with a fresh seed from it.

    Raises:
        ValueError: A group without objectives, or numbers of objectives for other groups.
    """
    seeds = source
    if isinstance(seeds, torch.Generator):
        seeds = torch.randint(2**63 - 1, (), generator=seeds, device=seeds.device)
    counts = num_objectives
    if isinstance(counts, int):
        counts = torch.full_like(seeds, counts)
    counts = counts.to(seeds.device)
    if counts.shape != seeds.shape:
        raise ValueError(
            f"num_objectives has shape {tuple(counts.shape)} for seeds of shape "
            f"{tuple(seeds.shape)}; give one number, or one per group"
        )
    if counts.numel() and int(counts.min()) < 1:
        raise ValueError("a prompt has no objective; every prompt needs at least one")
    width = int(counts.max()) if counts.numel() else 0
    return DrawGroups(seeds, counts, width)


def dirichlet_points(
    groups: DrawGroups, alpha: float | Sequence[float], num_draws: int
) -> Float64[Tensor, "*groups N K"]:
    """Return independent Dirichlet(alpha) points of every group.

    Raises:
        ValueError: As ``simplex.as_alpha`` and ``simplex.dirichlet_from_uniform``.
    """
    if bool((as_alpha(alpha, groups.width) != 1).any()):
        return dirichlet_group_by_group(groups, alpha, lambda one: one.uniforms(num_draws))
    seeds, counts = groups.seeds.reshape(-1), groups.counts.reshape(-1)
    size = (len(seeds), groups.width, num_draws)
    points = torch.zeros(size, dtype=torch.float64, device=seeds.device)
    # Groups of one size at a time: none is rounded differently because others are wider.
    for own in range(1, groups.width + 1):
        rows = (counts == own).nonzero().squeeze(-1)
        if len(rows) == len(seeds):
            _fill_with_exponentials(points, seeds)
        elif len(rows):
            part = points.new_empty(len(rows), own, num_draws)
            _fill_with_exponentials(part, seeds[rows])
            points[rows, :own] = part
    return points.reshape(*groups.seeds.shape, groups.width, num_draws).transpose(-1, -2)


def dirichlet_group_by_group(
    groups: DrawGroups,
    alpha: float | Sequence[float],
    uniforms: Callable[[DrawGroups], Float64[Tensor, "K N"]],
) -> Float64[Tensor, "*groups N K"]:
    """Return Dirichlet(alpha) points from uniform numbers, each group mapped alone.

    For alpha other than 1 this keeps groups independent of each other to the last bit: the rounding
    of torch's incomplete gamma function depends on where in a tensor a number stands.

    Args:
        groups: Any number of groups.
        alpha: Concentration, one number or one per objective.
        uniforms: Gives the numbers of a single group.

    Raises:
        ValueError: As ``simplex.as_alpha`` and ``simplex.dirichlet_from_uniform``.
    """
    concentration = as_alpha(alpha, groups.width)
    points: list[Tensor] = []
    for seed, count in zip(groups.seeds.reshape(-1), groups.counts.reshape(-1), strict=True):
        own = int(count)
        drawn = dirichlet_from_uniform(uniforms(DrawGroups(seed, count, own)), concentration[:own])
        points.append(pad(drawn, (0, groups.width - own)))
    if not points:
        return groups.seeds.new_zeros((*groups.seeds.shape, 0, groups.width), dtype=torch.float64)
    return torch.stack(points).reshape(*groups.seeds.shape, -1, groups.width)


def _fill_with_exponentials(points: Float64[Tensor, "B K N"], seeds: Int64[Tensor, " B"]) -> None:
    """Write Dirichlet(1) points: exponentials, -log of uniform numbers, divided by their sum."""
    count = points[0].numel()
    rows = max(1, _BLOCK_ELEMENTS // count)
    for first in range(0, len(points), rows):
        block = points[first : first + rows]
        # The signs cancel in the ratio.
        torch.log(counter_uniform(seeds[first : first + rows], count).view_as(block), out=block)
        block.div_(block.sum(dim=1, keepdim=True))
