"""Keys and values while decoding: prompts computed once, room for every new token set aside."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class DecodeLayer(CacheLayerMixin):
    """Keys and values of one layer, ``[rows, heads, positions, head_dim]``.

    The first forward pass (the prompts) is stored as it comes. `spread` gives each row a copy of
    its prompt with room behind it; later passes write there and see everything up to themselves.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self._length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Keeps the states of the prompts as they are."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = key_states, value_states
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """The states so far, with the new ones behind them."""
        start = self._length
        self._length += key_states.shape[2]
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            return key_states, value_states
        assert self.keys is not None
        assert self.values is not None
        self.keys[:, :, start : self._length] = key_states
        self.values[:, :, start : self._length] = value_states
        return self.keys[:, :, : self._length], self.values[:, :, : self._length]

    def spread(self, rows: Int[Tensor, " R"], capacity: int) -> None:
        """Row i becomes a copy of the old row ``rows[i]`` with `capacity` positions."""
        self.keys = self._copied(self.keys, rows, capacity)
        self.values = self._copied(self.values, rows, capacity)

    def _copied(self, states: Tensor | None, rows: Tensor, capacity: int) -> Tensor:
        assert states is not None
        _, heads, _, head_dim = states.shape
        copied = states.new_empty(rows.shape[0], heads, capacity, head_dim)
        copied[:, :, : self._length] = states[:, :, : self._length].index_select(0, rows)
        return copied

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Positions that a pass over `query_length` new tokens sees, and where they begin."""
        return self._length + query_length, 0

    def get_seq_length(self) -> int:
        """Positions in use."""
        return self._length

    def get_max_length(self) -> int:
        """-1: the layer itself sets no limit."""
        return -1


class DecodeCache(Cache):
    """The layers of one model."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=DecodeLayer)

    def spread(self, rows: Int[Tensor, " R"], capacity: int) -> None:
        """Every layer's row i becomes a copy of its old row ``rows[i]``; see `DecodeLayer`."""
        for layer in self.layers:
            assert isinstance(layer, DecodeLayer)
            layer.spread(rows, capacity)


def hidden_prompt_padding(
    lengths: Int[Tensor, " R"], width: int, capacity: int, dtype: torch.dtype
) -> Tensor | None:
    """What is added to attention scores, ``[R, 1, 1, capacity]``; None if no prompt is padded.

    Prompts are padded on the right to `width`; new tokens follow from position `width` on.
    """
    if bool((lengths == width).all()):
        return None
    positions = torch.arange(capacity, device=lengths.device)
    is_padding = (positions >= lengths[:, None]) & (positions < width)
    mask = torch.zeros(is_padding.shape, dtype=dtype, device=lengths.device)
    return mask.masked_fill_(is_padding, torch.finfo(dtype).min)[:, None, None]
