"""Policy losses and KL estimates against the exact values."""

import inspect
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from vpo_lightning.core.losses import (
    KlEstimator,
    cispo,
    clipped_fraction,
    clipped_surrogate,
    gspo,
    kl_estimate,
    reinforce,
)

Loss = Callable[..., Tensor]
LP = torch.tensor([[-1, -0.5, -2]], dtype=torch.float64)
OLD = torch.tensor([[-1.2, -0.9, -1.5]], dtype=torch.float64)
REF = torch.tensor([[-1.1, -0.7, -1.9]], dtype=torch.float64)
ALL = torch.ones(1, 3, dtype=torch.bool)
PLUS, MINUS = (
    torch.tensor([[1.0]], dtype=torch.float64),
    torch.tensor([[-1.0]], dtype=torch.float64),
)
LOSSES: list[Loss] = [
    clipped_surrogate,
    partial(clipped_surrogate, dual_clip=3.0),
    gspo,
    cispo,
    reinforce,
]
every_loss = pytest.mark.parametrize("loss", LOSSES)


def close(found: Tensor, expected: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=torch.float64), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(
    ("loss", "advantages", "expected"),
    [
        (clipped_surrogate, PLUS, [-1.2, -1.2, -0.606531]),
        (partial(clipped_surrogate, clip_high=0.28), PLUS, [-1.221403, -1.28, -0.606531]),
        (clipped_surrogate, MINUS, [1.221403, 1.491825, 0.8]),
        (cispo, PLUS, [1.221403, 0.745912, 1.213061]),
        (partial(cispo, min_ratio=0.8, max_ratio=1.2), PLUS, [1.2, 0.6, 1.6]),
        (reinforce, PLUS, [1, 0.5, 2]),
        (reinforce, MINUS, [-1, -0.5, -2]),
        (partial(gspo, clip_low=0.2, clip_high=0.2), PLUS, [-1.033895] * 3),
        (gspo, PLUS, [-1.0004] * 3),
        (gspo, MINUS, [1.033895] * 3),
    ],
)
def test_losses_have_their_exact_values(
    loss: Loss, advantages: Tensor, expected: list[float]
) -> None:
    close(loss(LP, OLD, advantages, ALL), [expected])
    close(loss(LP, OLD, advantages.expand(1, 3), ALL), [expected])


def test_the_dual_clip_bounds_the_loss_of_bad_tokens_only() -> None:
    ratio5 = torch.tensor([[math.log(5.0)]], dtype=torch.float64)
    one, zero = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.float64)
    dual = partial(clipped_surrogate, dual_clip=3.0)
    close(dual(ratio5, zero, MINUS, one), [[3.0]])
    close(clipped_surrogate(ratio5, zero, MINUS, one), [[5.0]])
    close(dual(ratio5, zero, PLUS, one), [[-1.2]])
    close(dual(-ratio5, zero, PLUS, one), [[-0.2]])


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.1, 0.2, -0.1]),
        ("k2", [0.005, 0.02, 0.005]),
        ("k3", [0.004837, 0.018731, 0.005171]),
    ],
)
def test_kl_estimates_have_their_exact_values(
    estimator: KlEstimator, expected: list[float]
) -> None:
    close(kl_estimate(LP, REF, ALL, estimator), [expected])


def test_kl_estimates_average_to_the_divergence() -> None:
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.randn(2, 5, dtype=torch.float64, generator=generator).log_softmax(-1)
    exact = float((policy.exp() * (policy - reference)).sum())
    # Expectations over the five tokens, computed exactly.
    mask = torch.ones(1, 5, dtype=torch.bool)
    for estimator in ("k1", "k3"):
        values = kl_estimate(policy[None], reference[None], mask, estimator)
        assert math.isclose(float((policy.exp() * values).sum()), exact, rel_tol=1e-12)


def test_k2_has_the_gradient_of_the_divergence_in_expectation() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, other = torch.randn(2, 5, dtype=torch.float64, generator=generator)
    logits.requires_grad_()
    reference, mask = other.log_softmax(-1)[None], torch.ones(1, 5, dtype=torch.bool)

    def gradient(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, logits)[0]

    def expected_loss(estimator: KlEstimator) -> Tensor:
        logprobs = logits.log_softmax(-1)[None]
        return (logprobs.detach().exp() * kl_estimate(logprobs, reference, mask, estimator)).sum()

    logprobs = logits.log_softmax(-1)[None]
    exact = gradient((logprobs.exp() * (logprobs - reference)).sum())
    close(gradient(expected_loss("k2")), exact, 1e-12)
    close(gradient(expected_loss("k1")), torch.zeros(5), 1e-12)


@every_loss
def test_tokens_outside_the_mask_do_not_matter_whatever_they_hold(loss: Loss) -> None:
    mask = torch.tensor([[True, True, False]])
    for filling in (math.nan, -math.inf, 1e30):
        lp, old = LP.clone(), OLD.clone()
        lp[0, 2] = old[0, 2] = filling
        lp.requires_grad_()
        values = loss(lp, old, PLUS, mask)
        close(values[:, :2], loss(LP[:, :2], OLD[:, :2], PLUS, ALL[:, :2]))
        assert float(values[0, 2].detach()) == 0
        values.sum().backward()
        assert lp.grad is not None
        assert bool(torch.isfinite(lp.grad).all())
        assert float(lp.grad[0, 2]) == 0


@every_loss
def test_extreme_ratios_keep_gradients_finite(loss: Loss) -> None:
    for advantages in (PLUS, MINUS):
        for gap in (-2000.0, 2000.0):
            lp = torch.full((1, 2), -1.0, requires_grad=True)
            old = torch.full((1, 2), -1.0 - gap)
            values = loss(lp, old, advantages.float(), ALL[:, :2])
            assert bool(torch.isfinite(values).all())
            values.sum().backward()
            assert lp.grad is not None
            assert bool(torch.isfinite(lp.grad).all())


@every_loss
def test_on_policy_gradients_are_those_of_reinforce(loss: Loss) -> None:
    advantages = torch.tensor([[0.7], [-1.3]], dtype=torch.float64)
    mask = torch.ones(2, 3, dtype=torch.bool)
    logprobs = torch.cat([LP, OLD]).requires_grad_()

    def gradient(function: Loss) -> Tensor:
        value = function(logprobs, logprobs.detach(), advantages, mask)
        return torch.autograd.grad(value.sum(), logprobs)[0]

    close(gradient(loss), gradient(reinforce), 1e-12)


def test_the_sequence_ratio_has_the_gradient_of_every_token() -> None:
    logprobs = OLD.clone().requires_grad_()
    mask = torch.tensor([[True, True, False]])
    per_row = gspo(logprobs, OLD, PLUS, mask).sum() / 2
    gradient = torch.autograd.grad(per_row, logprobs)[0]
    close(gradient, [[-0.5, -0.5, 0]])


def test_cispo_weights_carry_no_gradient() -> None:
    logprobs = LP.clone().requires_grad_()
    cispo(logprobs, OLD, PLUS, ALL).sum().backward()
    assert logprobs.grad is not None
    close(logprobs.grad, -(LP - OLD).exp())


def test_the_clipped_fraction_counts_tokens_without_gradient() -> None:
    close(clipped_fraction(LP, OLD, PLUS, ALL).double(), 2 / 3)
    close(clipped_fraction(LP, OLD, MINUS, ALL).double(), 1 / 3)
    lp = LP.clone().requires_grad_()
    clipped_surrogate(lp, OLD, PLUS, ALL).sum().backward()
    assert lp.grad is not None
    assert int((lp.grad == 0).sum()) == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(clipped_surrogate, clip_low=1.0), r"loss\.clip_low"),
        (partial(clipped_surrogate, clip_high=-0.1), r"loss\.clip_high"),
        (partial(clipped_surrogate, dual_clip=1.0), r"loss\.dual_clip"),
        (partial(gspo, clip_low=-1.0), r"loss\.clip_low"),
        (partial(cispo, min_ratio=2.0, max_ratio=1.0), r"0 <= min_ratio <= max_ratio"),
    ],
)
def test_settings_out_of_range_are_refused(call: Loss, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(LP, OLD, PLUS, ALL)


def test_an_unknown_kl_estimator_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kl estimator is 'k4'"):
        inspect.unwrap(kl_estimate)(LP, REF, ALL, "k4")  # pyright: ignore[reportArgumentType]
