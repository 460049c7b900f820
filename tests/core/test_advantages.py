"""Group estimators against the table of exact values, guards and invariances."""

import inspect
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vpo_lightning.core.advantages import (
    centred,
    group_normalized,
    leave_one_out_normalized,
    maxrl,
    rloo,
)
from vpo_lightning.core.advantages_at_k import max_at_k, pass_at_k_argmax, pkpo

Estimator = Callable[..., torch.Tensor]
R = torch.tensor([1, 0, 0.5, 0.25], dtype=torch.float64)

ESTIMATORS: dict[str, Estimator] = {
    "centred": centred,
    "group_normalized": group_normalized,
    "sample std": partial(group_normalized, ddof=1),
    "rloo": rloo,
    "leave_one_out_normalized": leave_one_out_normalized,
    "maxrl": maxrl,
    "max_at_k": max_at_k,
    "pass_at_k_argmax": pass_at_k_argmax,
    "pkpo": pkpo,
}
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
# Estimators that divide by the std of the whole group.
BOUNDED = [group_normalized, partial(group_normalized, ddof=1), max_at_k, partial(max_at_k, ddof=0)]
scores_of_a_group = st.lists(st.floats(0, 1, width=32), min_size=3, max_size=9)


def close(found: torch.Tensor, expected: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (centred, [0.5625, -0.4375, 0.0625, -0.1875]),
        (
            partial(group_normalized, ddof=1, eps=1e-4),
            [1.317157, -1.024455, 0.146351, -0.439052],
        ),
        (partial(group_normalized, ddof=1), [1.317462, -1.024693, 0.146385, -0.439154]),
        (partial(group_normalized, eps=1e-8), [1.521278, -1.183216, 0.169031, -0.507093]),
        (group_normalized, [1.521274, -1.183213, 0.169030, -0.507091]),
        (rloo, [0.75, -0.583333, 0.083333, -0.25]),
        (leave_one_out_normalized, [2.999988, -1.527521, 0.160128, -0.499999]),
        (maxrl, [1.285711, -0.999998, 0.142857, -0.428570]),
    ],
)
def test_estimators_have_the_values_of_the_table(
    estimator: Estimator, expected: list[float]
) -> None:
    close(estimator(R), expected)
    close(estimator(R.float()[None]), [expected])


def test_the_example_group_has_both_published_stds() -> None:
    scores = torch.tensor([0.75, 0.5, 0.5, 0.6], dtype=torch.float64)
    close(group_normalized(scores), [1.588187, -0.855178, -0.855178, 0.122168])
    close(group_normalized(scores, ddof=1), [1.375412, -0.740607, -0.740607, 0.105801])


def test_the_population_form_is_larger_by_the_ratio_of_the_stds() -> None:
    scores = torch.rand(8, dtype=torch.float64)
    ratio = group_normalized(scores, eps=0.0) / group_normalized(scores, ddof=1, eps=0.0)
    close(ratio, [math.sqrt(8 / 7)] * 8)


def test_maxrl_of_binary_scores_without_eps() -> None:
    close(maxrl(torch.tensor([1.0, 0, 0, 0]), eps=0.0), [3, -1, -1, -1], 1e-12)
    for eps in (0.0, 1e-6):
        assert not bool(maxrl(torch.zeros(4), eps=eps).any())


def test_leave_one_out_statistics_equal_a_loop() -> None:
    scores = torch.rand(3, 6, dtype=torch.float64)
    expected = torch.zeros_like(scores)
    for b in range(3):
        for i in range(6):
            others = torch.cat([scores[b, :i], scores[b, i + 1 :]])
            expected[b, i] = (scores[b, i] - others.mean()) / (others.std() + 1e-6)
            close(rloo(scores)[b, i], float(scores[b, i] - others.mean()), 1e-12)
    close(leave_one_out_normalized(scores), expected, 1e-12)


def test_rounding_of_a_std_does_not_become_an_advantage() -> None:
    scores = torch.tensor([0.35] * 7 + [0])
    advantages = leave_one_out_normalized(scores)
    # The others of the odd one are equal: no scale to measure it with.
    assert float(advantages[7]) == 0
    assert float(advantages.abs().max()) < math.sqrt(7)
    for dtype in (torch.float32, torch.float64):
        for estimator in BOUNDED:
            assert float(estimator(scores.to(dtype)).abs().max()) <= math.sqrt(7)
            assert not bool(estimator(torch.full((8,), 0.35, dtype=dtype)).any())


@every_estimator
@pytest.mark.parametrize("value", [0.0, 0.1, 0.35, 1 / 3, 1.0, -1e9 / 7, 1e15 / 3])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
def test_equal_scores_give_exactly_0(estimator: Estimator, value: float, size: int) -> None:
    scores = torch.full((2, size), value, dtype=torch.float64)
    if not (estimator is max_at_k and size == 2):
        assert not bool(estimator(scores).any())
        assert not bool(estimator(scores.float()).any())


@pytest.mark.parametrize("value", [0.1, 0.7, -1e9 / 7, 1e15 / 3])
def test_no_floor_is_needed_for_equal_scores(value: float) -> None:
    scores = torch.full((2, 7), value, dtype=torch.float64)
    assert not bool(group_normalized(scores, floor=0.0).any())
    assert not bool(maxrl(scores, floor=0.0).any())
    assert not bool(leave_one_out_normalized(scores, floor=0.0).any())
    assert not bool(max_at_k(scores, floor=0.0).any())
    assert not bool(max_at_k(scores, normalize=False).any())


def test_a_std_below_the_floor_gives_exactly_0() -> None:
    scores = torch.tensor([[0.5, 0.5 + 1e-7], [0.5, 0.5 + 1e-5]], dtype=torch.float64)
    for ddof in (0, 1):
        advantages = group_normalized(scores, ddof=ddof)
        assert torch.equal(advantages[0], torch.zeros(2, dtype=torch.float64))
        assert float(advantages[1, 1]) > 0.5
    assert bool(group_normalized(scores, floor=0.0)[0].all())
    assert not bool(group_normalized(torch.ones(3), eps=0.0, floor=0.0).any())


@given(scores_of_a_group)
def test_advantages_by_the_group_std_stay_below_the_square_root(scores: list[float]) -> None:
    for estimator in BOUNDED:
        largest = float(estimator(torch.tensor(scores)).abs().max())
        assert largest <= math.sqrt(len(scores) - 1) * (1 + 1e-12)


@every_estimator
@given(scores=scores_of_a_group, seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_permuting_the_group_permutes_the_advantages(
    estimator: Estimator, scores: list[float], seed: int
) -> None:
    values = torch.tensor(scores, dtype=torch.float64)
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
    if float(values.std(correction=0)) > 2e-6 or float(values.std(correction=0)) == 0:
        found = estimator(values[order])
        if estimator in (leave_one_out_normalized, pass_at_k_argmax):
            # Guards decide by thresholds that rounding in another order may cross.
            found, expected = found.sort().values, estimator(values).sort().values
        else:
            expected = estimator(values)[order]
        close(found, expected, 1e-7)


@every_estimator
def test_groups_are_independent_of_their_batch(estimator: Estimator) -> None:
    scores = torch.rand(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    batch = estimator(scores)
    alone = torch.stack([torch.stack([estimator(group) for group in part]) for part in scores])
    torch.testing.assert_close(batch, alone, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("estimator", [centred, group_normalized, rloo])
@given(scores=scores_of_a_group)
@settings(max_examples=25)
def test_centred_estimators_add_up_to_0(estimator: Estimator, scores: list[float]) -> None:
    total = float(estimator(torch.tensor(scores)).sum())
    # With a std near the floor of 1e-6 rounding of 1e-16 is scaled up to 1e-9.
    assert abs(total) < 1e-8


@every_estimator
def test_a_group_of_one_gets_0_by_default(estimator: Estimator) -> None:
    assert torch.equal(estimator(torch.tensor([[0.7]])), torch.zeros(1, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (group_normalized, 0.7 / (1 + 1e-6)),
        (partial(group_normalized, ddof=1), 0.7 / (1 + 1e-6)),
        (centred, 0.7),
        (maxrl, 0.7 / 1e-6),
    ],
)
def test_the_published_group_of_one_comes_with_a_warning(
    estimator: Estimator, expected: float
) -> None:
    with pytest.warns(UserWarning, match="no baseline"):
        advantages = estimator(torch.tensor([0.7], dtype=torch.float64), singleton="raw")
    close(advantages, [expected], 1e-12)


@pytest.mark.parametrize("size", [1, 2])
def test_others_without_a_std_give_0(size: int) -> None:
    assert not bool(leave_one_out_normalized(torch.rand(3, size)).any())


def test_maxrl_of_a_mean_that_is_not_positive_is_0() -> None:
    assert not bool(maxrl(torch.tensor([-1.0, 0.5, 0.0])).any())
    assert not bool(maxrl(torch.tensor([1e-7, 0.0])).any())


@every_estimator
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_not_finite_are_refused(estimator: Estimator, value: float) -> None:
    scores = torch.rand(3, 4)
    scores[2, 1] = value
    with pytest.raises(ValueError, match=r"score of prompt group 2, rollout 1 is (nan|inf)"):
        estimator(scores)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ddof": 2}, r"ddof is 2; set `advantage\.ddof`"),
        ({"eps": -1.0}, r"eps is -1\.0"),
        ({"floor": -1.0}, r"floor is -1\.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_normalized(R, **settings)  # pyright: ignore[reportArgumentType]


def test_an_unknown_singleton_rule_is_refused() -> None:
    function = inspect.unwrap(group_normalized)
    with pytest.raises(ValueError, match=r"singleton is 'one'"):
        function(torch.ones(1), singleton="one")  # pyright: ignore[reportArgumentType]
