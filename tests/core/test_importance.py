"""Truncated importance weights."""

import inspect
import math

import pytest
import torch

from vpo_lightning.core.importance import importance_weights

OLD = torch.tensor([[-1.2, -0.9, -1.5]], dtype=torch.float64)
ENGINE = torch.tensor([[-1.5, -0.9, -1.45]], dtype=torch.float64)
ALL = torch.ones(1, 3, dtype=torch.bool)


def close(found: torch.Tensor, expected: object) -> None:
    torch.testing.assert_close(
        found, torch.as_tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-6
    )


def test_weights_have_their_exact_values() -> None:
    tokens = importance_weights(OLD, ENGINE, ALL)
    close(tokens.weights, [[1.349859, 1, 0.951229]])
    assert tokens.capped_fraction == tokens.missing_fraction == 0
    close(importance_weights(OLD, ENGINE, ALL, level="sequence").weights, [[1.284025] * 3])


def test_larger_weights_are_cut_or_dropped_and_counted() -> None:
    cut = importance_weights(OLD, ENGINE, ALL, cap=1.2)
    close(cut.weights, [[1.2, 1, 0.951229]])
    assert cut.capped_fraction == pytest.approx(1 / 3)
    dropped = importance_weights(OLD, ENGINE, ALL, cap=1.2, over_cap="drop")
    close(dropped.weights, [[0, 1, 0.951229]])


def test_a_small_constant_difference_caps_every_long_sequence() -> None:
    old, mask = torch.zeros(4, 100), torch.ones(4, 100, dtype=torch.bool)
    engine = old - 0.012
    sequence = importance_weights(old, engine, mask, level="sequence", cap=3.0, over_cap="drop")
    assert sequence.capped_fraction == 1.0
    assert not bool(sequence.weights.any())
    assert importance_weights(old, engine, mask, cap=3.0).capped_fraction == 0
    shorter = torch.arange(100).expand(4, 100) < torch.tensor([100, 100, 50, 10])[:, None]
    half = importance_weights(old, engine, shorter, level="sequence", cap=3.0)
    assert half.capped_fraction == 0.5


def test_a_missing_engine_logprob_weighs_1_and_is_counted() -> None:
    engine = ENGINE.clone()
    engine[0, 0] = math.nan
    tokens = importance_weights(OLD, engine, ALL)
    close(tokens.weights, [[1, 1, 0.951229]])
    assert tokens.missing_fraction == pytest.approx(1 / 3)
    sequence = importance_weights(OLD, engine, ALL, level="sequence")
    close(sequence.weights, [[math.exp(-0.05)] * 3])


def test_weights_are_detached_and_0_outside_the_mask() -> None:
    old = OLD.clone().requires_grad_()
    mask = torch.tensor([[True, True, False], [False, False, False]])
    engine = torch.cat([ENGINE, torch.full((1, 3), math.nan, dtype=torch.float64)])
    engine[0, 2] = math.inf
    found = importance_weights(old.expand(2, 3), engine, mask, level="sequence")
    assert not found.weights.requires_grad
    close(found.weights, [[math.exp(0.3)] * 2 + [0], [0, 0, 0]])
    assert found.missing_fraction == 0


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"set `loss\.importance_cap` above 0"):
        importance_weights(OLD, ENGINE, ALL, cap=0.0)
    with pytest.raises(ValueError, match=r"level is 'row'"):
        inspect.unwrap(importance_weights)(OLD, ENGINE, ALL, level="row")  # pyright: ignore
