"""Restricted sampling supports."""

from typing import Any

import pytest
import torch

from vpo_lightning.core.logprobs import sampled_logprobs
from vpo_lightning.core.support import kept_tokens, restricted_logprobs

LOGITS = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64).log()
FIRST = torch.tensor([0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_p_renormalises_over_the_kept_tokens(dtype: torch.dtype) -> None:
    found = restricted_logprobs(LOGITS.to(dtype), FIRST, top_p=0.8)
    assert float(found) == pytest.approx(-0.470004, abs=1e-6)
    assert float(sampled_logprobs(LOGITS, FIRST)) == pytest.approx(-0.693147, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, 4),
        ({"top_p": 0.8}, 2),
        ({"top_p": 0.81}, 3),
        ({"top_p": 0.5}, 1),
        ({"top_p": 1e-9}, 1),
        ({"top_k": 1}, 1),
        ({"top_k": 3}, 3),
        ({"top_k": -1}, 4),
        ({"top_k": 9}, 4),
        ({"min_p": 0.31}, 2),
        ({"min_p": 0.29}, 3),
        ({"min_p": 1.0}, 1),
        # After top-k the two left have .625 and .375.
        ({"top_k": 2, "top_p": 0.6}, 1),
        ({"top_k": 2, "top_p": 0.63}, 2),
        # At temperature 1/2 the probabilities are .685, .247, .062, .007.
        ({"temperature": 0.5, "top_p": 0.68}, 1),
        ({"temperature": 0.5, "top_p": 0.9}, 2),
    ],
)
def test_the_likeliest_tokens_are_kept(settings: dict[str, Any], kept: int) -> None:
    expected = [index < kept for index in range(4)]
    assert kept_tokens(LOGITS, **settings).tolist() == [expected]
    shuffled = torch.tensor([2, 0, 3, 1])
    found = kept_tokens(LOGITS[:, shuffled], **settings)
    assert found.tolist() == [[expected[index] for index in shuffled]]
    probabilities = restricted_logprobs(LOGITS.expand(4, 4), torch.arange(4), **settings).exp()
    assert float(probabilities.sum()) == pytest.approx(1.0)
    assert (probabilities > 0).tolist() == expected


def test_a_token_outside_the_support_has_no_probability() -> None:
    assert float(restricted_logprobs(LOGITS, torch.tensor([3]), top_k=2)) == -torch.inf


def test_without_restrictions_it_is_the_softmax() -> None:
    found = restricted_logprobs(LOGITS, FIRST, temperature=0.7)
    torch.testing.assert_close(found, sampled_logprobs(LOGITS, FIRST, 0.7))


def test_gradients_stay_inside_the_support() -> None:
    logits = LOGITS.clone().requires_grad_()
    restricted_logprobs(logits, FIRST, top_p=0.8).sum().backward()
    assert logits.grad is not None
    assert not bool(logits.grad[0, 2:].any())
    torch.testing.assert_close(logits.grad[0, :2], torch.tensor([0.375, -0.375]).double())


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.0}, {"top_k": -2}, {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": 2.0}],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"set them in `engine`"):
        kept_tokens(LOGITS, **settings)
