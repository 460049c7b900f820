"""Masks from lengths and the overlong penalty."""

import pytest
import torch

from vpo_lightning.core.masks import (
    drop_truncated,
    length_mask,
    lengths_until_eos,
    soft_overlong_penalty,
)


def test_the_first_end_token_counts_even_where_it_is_the_pad_token() -> None:
    ids = torch.tensor([[5, 7, 2, 2, 2], [5, 6, 7, 8, 9], [2, 5, 5, 2, 2]])
    lengths, truncated = lengths_until_eos(ids, 2)
    assert length_mask(lengths, 5).long().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1],
        [1, 0, 0, 0, 0],
    ]
    assert truncated.tolist() == [False, True, False]


def test_several_end_tokens_are_known() -> None:
    ids = torch.tensor([[5, 7, 9, 2], [5, 5, 5, 5]])
    lengths, truncated = lengths_until_eos(ids, [2, 7])
    assert lengths.tolist() == [2, 4]
    assert truncated.tolist() == [False, True]
    assert lengths_until_eos(ids[:, :0], 2)[0].tolist() == [0, 0]


def test_lengths_out_of_range_are_refused() -> None:
    for lengths in ([3, 6], [-1, 2]):
        with pytest.raises(ValueError, match=r"expected them in \[0, 5\]"):
            length_mask(torch.tensor(lengths), 5)
    assert length_mask(torch.zeros(0, dtype=torch.int64), 5).shape == (0, 5)


def test_truncated_rows_leave_the_mask() -> None:
    mask = length_mask(torch.tensor([2, 3]), 3)
    kept = drop_truncated(mask, torch.tensor([True, False]))
    assert kept.tolist() == [[False] * 3, [True] * 3]


def test_the_overlong_penalty_is_piecewise_linear() -> None:
    lengths = torch.tensor([0, 80, 81, 90, 100, 130])
    found = soft_overlong_penalty(lengths, max_length=100, cache=20)
    expected = torch.tensor([0, 0, -0.05, -0.5, -1, -1], dtype=torch.float64)
    torch.testing.assert_close(found, expected)
    for cache in (0, 101):
        with pytest.raises(ValueError, match=r"\(0, max_length\]"):
            soft_overlong_penalty(lengths, max_length=100, cache=cache)
