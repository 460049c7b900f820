"""Seeds and counter-based uniform numbers."""

import math
from hashlib import blake2b

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vpo_lightning.core.seeding import counter_uniform, derive_seed, torch_generator

WORD = 2**64 - 1


def mix(value: int, shifts: tuple[int, int, int], multipliers: tuple[int, int]) -> int:
    for shift, multiplier in zip(shifts, multipliers, strict=False):
        value = (value ^ (value >> shift)) * multiplier & WORD
    return value ^ (value >> shifts[2])


def reference_uniform(seed: int, position: int) -> float:
    """SplitMix64 started at the MurmurHash3 finaliser of the seed, in Python's integers."""
    origin = mix(seed & WORD, (33, 33, 33), (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53))
    state = (origin + (position // 2 + 1) * 0x9E3779B97F4A7C15) & WORD
    bits = mix(state, (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    half = (bits >> 32 * (position % 2)) & (2**32 - 1)
    # Halves as signed integers, shifted by half of their range.
    signed = half - 2**32 if half >= 2**31 else half
    return (signed + 2**31 + 0.5) / 2**32


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40))
def test_numbers_are_those_of_splitmix64(seed: int, position: int) -> None:
    value = counter_uniform(torch.tensor([seed]), 3, start=position)[0]
    assert value.tolist() == [reference_uniform(seed, position + i) for i in range(3)]


def test_the_reference_generator_is_the_published_one() -> None:
    # First output of splitmix64 from state 1234567 (test vector of the Rosetta Code task).
    state = (1234567 + 0x9E3779B97F4A7C15) & WORD
    assert mix(state, (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)) == 6457827717110365317


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=70),
    st.integers(0, 300),
    st.integers(0, 1000),
)
def test_a_batch_equals_each_seed_alone(seeds: list[int], count: int, start: int) -> None:
    batch = counter_uniform(torch.tensor(seeds), count, start)
    alone = [counter_uniform(torch.tensor(seed), count, start) for seed in seeds]
    assert torch.equal(batch, torch.stack(alone))


def test_batches_larger_than_a_block_equal_their_rows_alone() -> None:
    seeds = torch.arange(70)
    batch = counter_uniform(seeds, 5000)
    for row in (0, 12, 13, 14, 69):
        assert torch.equal(batch[row], counter_uniform(seeds[row], 5000))
    assert torch.equal(counter_uniform(seeds[3], 200_000)[:5000], batch[3])


def test_a_stream_is_continued_at_a_start() -> None:
    seed = torch.tensor(7)
    whole = counter_uniform(seed, 100)
    for start in (40, 41):
        assert torch.equal(whole[start:], counter_uniform(seed, 100 - start, start=start))


def test_group_axes_are_kept() -> None:
    seeds = torch.arange(6).reshape(2, 3)
    values = counter_uniform(seeds, 4)
    assert values.shape == (2, 3, 4)
    assert torch.equal(values[1, 2], counter_uniform(torch.tensor(5), 4))


def test_numbers_are_strictly_between_0_and_1() -> None:
    # The extreme patterns of 32 bits, through the same arithmetic.
    for signed, expected in ((-(2**31), 2.0**-33), (2**31 - 1, 1 - 2.0**-33)):
        value = torch.tensor([signed], dtype=torch.int32).double()
        assert float(value.mul_(2.0**-32).add_(0.5 + 2.0**-33)) == expected


@pytest.mark.parametrize("seeds", [torch.arange(64), torch.arange(64) << 56])
def test_numbers_are_uniform_even_for_neighbouring_seeds(seeds: torch.Tensor) -> None:
    values = counter_uniform(seeds, 4096)
    for sample in (values.reshape(-1), values[:, 0:64].T.reshape(-1), values[5]):
        bins = torch.histc(sample, 64, 0, 1)
        expected = sample.numel() / 64
        chi2 = float((bins - expected).square().sum() / expected)
        # 63 degrees of freedom: mean 63, standard deviation 11.2; six of them are never seen.
        assert chi2 < 63 + 6 * math.sqrt(126)


def test_streams_and_positions_are_uncorrelated() -> None:
    values = counter_uniform(torch.arange(256), 1024) - 0.5
    seeds = torch.corrcoef(values)
    positions = torch.corrcoef(values.T)
    lagged = (values[:, 1:] * values[:, :-1]).mean() * 12
    off_diagonal = (seeds - torch.eye(256)).abs().max(), (positions - torch.eye(1024)).abs().max()
    # The largest of 3e4 (5e5) correlations of 1024 (256) pairs stays below 5.5 standard errors.
    assert off_diagonal[0] < 5.5 / math.sqrt(1024)
    assert off_diagonal[1] < 5.5 / math.sqrt(256)
    assert abs(float(lagged)) < 5 / math.sqrt(256 * 1023)


def test_repetitions_are_as_rare_as_of_random_bits() -> None:
    values = counter_uniform(torch.arange(512), 1024).reshape(-1)
    repeated = values.numel() - values.unique().numel()
    expected = values.numel() ** 2 / 2 / 2**32
    assert abs(repeated - expected) < 6 * math.sqrt(expected)
    low, high = values.reshape(-1, 2).T
    assert abs(float(torch.corrcoef(torch.stack([low, high]))[0, 1])) < 5 / math.sqrt(len(low))


def test_counts_must_not_be_negative() -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        counter_uniform(torch.tensor(1), -1)


def test_seeds_are_the_same_for_ever() -> None:
    digest = blake2b(b"i1:0s7:weightsi1:3s7:maze-17", digest_size=8).digest()
    assert int.from_bytes(digest, "big") >> 1 == 224897016677390352
    assert derive_seed(0, "weights", 3, "maze-17") == 224897016677390352
    assert 0 <= derive_seed("x") < 2**63


def test_every_part_its_type_and_its_place_change_the_seed() -> None:
    parts = [("ab", "c"), ("a", "bc"), ("abc",), (1,), ("1",), (1, 2), (2, 1), (12,), (-1,), ("",)]
    assert len({derive_seed(*part) for part in parts}) == len(parts)


def test_seeds_refuse_other_types_and_nothing() -> None:
    with pytest.raises(ValueError, match="at least one part"):
        derive_seed()
    with pytest.raises(TypeError):
        derive_seed(1.5)  # pyright: ignore[reportArgumentType]


def test_generators_start_at_their_seed() -> None:
    first, second = (torch.rand(3, generator=torch_generator(seed)) for seed in (5, 5))
    assert torch.equal(first, second)
    assert not torch.equal(first, torch.rand(3, generator=torch_generator(6)))
