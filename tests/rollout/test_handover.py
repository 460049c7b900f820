"""Limits of the hand-over, and the canary on the hf engine."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from tests.text_model import save_text_model
from vpo_lightning.core.types import TokenBatch
from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.policy.loading import load_model
from vpo_lightning.rollout.canary import Canary
from vpo_lightning.rollout.handover import HandoverSettings, within_seconds
from vpo_lightning.rollout.hf_engine import HFEngine


def test_an_action_that_hangs_is_an_error_within_the_limit() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"rollout\.handover\.timeout=0\.2"):
        within_seconds(0.2, "handing over", lambda: time.sleep(30))
    assert time.monotonic() - start < 5


def test_the_error_of_an_action_comes_back_as_it_is() -> None:
    def fail() -> None:
        raise ValueError("weight 'x' is unknown")

    with pytest.raises(ValueError, match="weight 'x' is unknown"):
        within_seconds(10, "handing over", fail)


def test_an_action_runs_without_gradients() -> None:
    seen: list[bool] = []
    within_seconds(10, "handing over", lambda: seen.append(torch.is_grad_enabled()))
    assert seen == [False]


def test_limits_follow_from_the_dtype_unless_given() -> None:
    assert HandoverSettings().limits("float32") == (1e-3, 0.05)
    assert HandoverSettings().limits("bfloat16") == (0.5, 2.0)
    assert HandoverSettings(warn=0.1).limits("float32") == (0.1, 0.1)
    assert HandoverSettings(warn=1e-5, stop=0.2).limits("bfloat16") == (1e-5, 0.2)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"timeout": 0}, "rollout.handover.timeout=0"),
        ({"warn": -1.0}, "rollout.handover.warn"),
        ({"stop": 0.0}, "rollout.handover.stop"),
        ({"warn": 1.0, "stop": 0.5}, "rollout.handover.stop=0.5"),
    ],
)
def test_a_wrong_limit_is_named(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        HandoverSettings(**settings)


@pytest.mark.parametrize("positions", [4096, 100, 12])
def test_the_canary_measures_rounding_with_equal_weights_and_more_with_others(
    tmp_path_factory: pytest.TempPathFactory, positions: int
) -> None:
    folder = save_text_model(
        tmp_path_factory.mktemp("canary") / "model", max_position_embeddings=positions
    )
    model, engine = load_model(folder, "float32", "sdpa"), HFEngine(folder)

    @torch.no_grad()
    def logprobs(tokens: TokenBatch) -> Tensor:
        return completion_logprobs(model, tokens, temperature=0.7)[0]

    canary = Canary([5, 6, 7, 8, 9], positions, temperature=0.7)
    assert canary.mismatch(engine, logprobs) < 1e-4
    with torch.no_grad():
        model.get_parameter("model.norm.weight").mul_(1.05)
    assert canary.mismatch(engine, logprobs) > 1e-2
