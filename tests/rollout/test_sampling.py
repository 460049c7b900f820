import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vpo_lightning.core.support import kept_tokens
from vpo_lightning.rollout.engine import SamplingSettings
from vpo_lightning.rollout.sampling import sample_tokens

PROBABILITIES = [0.5, 0.3, 0.15, 0.05]


def drawn(probabilities: list[float], uniform: float, **settings: float) -> tuple[int, float]:
    logits = torch.tensor([probabilities]).double().log()
    sampling = SamplingSettings(max_tokens=1, **settings)  # type: ignore[arg-type]
    ids, logprobs = sample_tokens(logits, torch.tensor([uniform]).double(), sampling)
    return int(ids[0]), float(logprobs[0])


def support(**settings: float) -> list[int]:
    """The tokens that a grid of numbers draws."""
    numbers = torch.linspace(0, 1, 2001).double()[:-1]
    logits = torch.tensor(PROBABILITIES).double().log().expand(2000, 4)
    sampling = SamplingSettings(max_tokens=1, **settings)  # type: ignore[arg-type]
    return sample_tokens(logits, numbers, sampling)[0].unique().tolist()


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 2), (0.96, 3)]
)
def test_a_token_is_where_the_cumulative_distribution_passes_the_number(
    uniform: float, token: int
) -> None:
    got, logprob = drawn(PROBABILITIES, uniform)
    assert got == token
    assert logprob == pytest.approx(math.log(PROBABILITIES[token]), abs=1e-7)


def test_logprobs_are_renormalised_over_the_kept_tokens() -> None:
    # log(.5 / .8) and not log(.5) = -.693147.
    assert drawn(PROBABILITIES, 0.1, top_p=0.8) == (0, pytest.approx(-0.470004, abs=1e-6))
    assert drawn(PROBABILITIES, 0.999, top_p=0.8)[0] == 1


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_p": 0.8}, [0, 1]),
        ({"top_p": 0.81}, [0, 1, 2]),
        ({"top_p": 1e-6}, [0]),
        ({"top_k": 3}, [0, 1, 2]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"min_p": 0.2}, [0, 1, 2]),
        ({"min_p": 1.0}, [0]),
        # After top-k 2 the distribution is (.625, .375): the first alone reaches .6.
        ({"top_k": 2, "top_p": 0.6}, [0]),
        # After min-p .2 the first two hold .842 and not .8.
        ({"min_p": 0.2, "top_p": 0.83}, [0, 1]),
    ],
)
def test_restrictions_keep_the_documented_tokens(
    settings: dict[str, float], kept: list[int]
) -> None:
    assert support(**settings) == kept


def test_temperature_divides_the_logits() -> None:
    logits = torch.tensor([[1.0, 2.0, -1.0]]).double()
    ids, logprobs = sample_tokens(
        logits, torch.tensor([0.5]).double(), SamplingSettings(max_tokens=1, temperature=0.5)
    )
    assert logprobs[0] == (logits / 0.5).log_softmax(-1)[0, ids[0]]


def test_temperature_zero_takes_the_best_and_reports_it_at_temperature_one() -> None:
    token, logprob = drawn([0.3, 0.45, 0.25], 0.999, temperature=0.0)
    assert token == 1
    assert logprob == pytest.approx(math.log(0.45), abs=1e-7)


def test_frequencies_are_the_probabilities() -> None:
    count = 40_000
    uniforms = (torch.arange(count).double() + 0.5) / count
    logits = torch.tensor(PROBABILITIES).double().log().expand(count, 4)
    ids, _ = sample_tokens(logits, uniforms, SamplingSettings(max_tokens=1))
    # Uniform numbers on a grid: the counts are exact up to one at each edge.
    counts = torch.bincount(ids, minlength=4).double() / count
    torch.testing.assert_close(counts, torch.tensor(PROBABILITIES).double(), rtol=0, atol=2e-4)


@given(
    st.lists(st.floats(-30, 30), min_size=1, max_size=12),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.05, 1),
    st.integers(0, 5),
)
def test_a_token_without_mass_is_never_drawn(
    values: list[float], uniform: float, top_p: float, top_k: int
) -> None:
    settings = SamplingSettings(max_tokens=1, top_p=top_p, top_k=top_k)
    logits: Tensor = torch.tensor([values]).double()
    numbers = torch.tensor([uniform]).double()
    ids, logprobs = sample_tokens(logits, numbers, settings)
    kept = kept_tokens(logits, top_p=top_p, top_k=top_k)
    assert kept[0, ids[0]]
    expected = logits.masked_fill(~kept, -torch.inf).log_softmax(-1)[0, ids[0]]
    assert logprobs[0] <= 1e-12
    assert logprobs[0] == pytest.approx(float(expected), abs=1e-9)


def test_the_largest_number_draws_the_last_token_with_mass() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]]).double()
    numbers = torch.tensor([1 - 2**-53]).double()
    ids, logprobs = sample_tokens(logits, numbers, SamplingSettings(max_tokens=1))
    assert ids[0] == 1
    assert logprobs.isfinite().all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_diverged_logits_are_an_error_and_not_a_token(bad: float, temperature: float) -> None:
    logits = torch.tensor([[0.0, bad]])
    settings = SamplingSettings(max_tokens=1, temperature=temperature)
    with pytest.raises(FloatingPointError, match=r"optimizer\.lr"):
        sample_tokens(logits, torch.tensor([0.5]).double(), settings)
