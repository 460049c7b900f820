"""Checks of tensors that name the offending prompt, so that a bad reward can be found."""

from collections.abc import Sequence

import torch
from torch import Tensor


def require_finite(
    values: Tensor, name: str, trailing: Sequence[str], prompt_ids: Sequence[str] | None = None
) -> None:
    """Return nothing if every entry of ``values`` is finite.

    Args:
        values: Any tensor; the axes before the ``trailing`` ones count the prompt groups.
        name: What the values are, for the message.
        trailing: Names of the last axes, e.g. ``("rollout", "answer", "objective")``.
        prompt_ids: One id per prompt group (flattened over the leading axes), for the message.

    Raises:
        ValueError: An entry is NaN or infinite; the message names the prompt and the position.
    """
    # One pass without temporaries: NaN and infinity survive any sum.
    if bool(torch.isfinite(values.sum())):
        return
    finite = torch.isfinite(values)
    if bool(finite.all()):
        return
    leading = values.shape[: values.dim() - len(trailing)]
    index = [int(position) for position in torch.nonzero(~finite)[0]]
    group = 0
    for size, position in zip(leading, index[: len(leading)], strict=True):
        group = group * size + position
    places = [
        f"{axis} {position}" for axis, position in zip(trailing, index[len(leading) :], strict=True)
    ]
    value = values[tuple(index)].item()
    raise ValueError(
        f"{name} of {group_name(group, prompt_ids)}, {', '.join(places)} is {value}; every value "
        "must be finite (the task's score() must return finite numbers, one per objective)"
    )


def group_name(group: int, prompt_ids: Sequence[str] | None) -> str:
    """Return how an error message calls a prompt group: its id where known, and its index."""
    if prompt_ids is None:
        return f"prompt group {group}"
    return f"prompt {prompt_ids[group]!r} (group {group})"
