"""Which tokens of a completion count: from lengths, never from comparing ids with the pad token."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor


def length_mask(lengths: Int[Tensor, "*rows"], max_length: int) -> Bool[Tensor, "*rows T"]:
    """Return True for the first ``lengths`` of ``max_length`` positions.

    Raises:
        ValueError: A length is negative or above ``max_length``.
    """
    if lengths.numel() and not 0 <= int(lengths.min()) <= int(lengths.max()) <= max_length:
        raise ValueError(
            f"lengths lie in [{int(lengths.min())}, {int(lengths.max())}], expected them in "
            f"[0, {max_length}]"
        )
    return torch.arange(max_length, device=lengths.device) < lengths[..., None]


def lengths_until_eos(
    ids: Int[Tensor, "*rows T"], eos_ids: int | Sequence[int]
) -> tuple[Int[Tensor, "*rows"], Bool[Tensor, "*rows"]]:
    """Return the number of tokens up to and including the first end token, and who has none.

    Safe where the pad token is the end token: what stands behind the first one is padding, and the
    first one is part of the completion. A row without an end token is truncated and T tokens long.

    Args:
        ids: Completion tokens.
        eos_ids: The token ids that end a completion.
    """
    ends = torch.as_tensor(eos_ids, device=ids.device).reshape(-1)
    is_end = torch.isin(ids, ends)
    truncated = ~is_end.any(dim=-1)
    before = (is_end.cumsum(dim=-1) == 0).sum(dim=-1)
    return torch.where(truncated, before, before + 1), truncated


def drop_truncated(mask: Bool[Tensor, "R T"], truncated: Bool[Tensor, " R"]) -> Bool[Tensor, "R T"]:
    """Return the mask without the rows that hit the length limit (DAPO's overlong filtering).

    The same mask goes into numerators and denominators (``aggregation.step_totals``), so the loss
    is that of the batch without these rows.
    """
    return mask & ~truncated[:, None]


def soft_overlong_penalty(
    lengths: Int[Tensor, "*rows"], max_length: int, cache: int
) -> Float64[Tensor, "*rows"]:
    """Return DAPO's length penalty, to be added to the score (arXiv:2503.14476, Eq. 13).

    0 up to ``max_length - cache`` tokens, then linear down to -1 at ``max_length``, -1 beyond.

    Args:
        lengths: Completion lengths in tokens.
        max_length: L_max, tokens.
        cache: L_cache, tokens over which the penalty grows.

    Raises:
        ValueError: Not ``0 < cache <= max_length``.
    """
    if not 0 < cache <= max_length:
        raise ValueError(
            f"overlong cache is {cache} tokens for a limit of {max_length}; set it in "
            "(0, max_length]"
        )
    return ((max_length - cache - lengths.double()) / cache).clamp(-1.0, 0.0)
