"""What a checkpoint holds."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import nn

from tests.policy.test_lora import adapted
from tests.tiny_models import tiny_model
from vpo_lightning.core.losses import clipped_surrogate
from vpo_lightning.lightning.module import OptimizerSettings, VPOModule
from vpo_lightning.lightning.objective import PolicyObjective
from vpo_lightning.policy.logprobs import Logprobs


def saved_names(load_policy: Callable[[], nn.Module]) -> set[str]:
    module = VPOModule(
        load_policy,
        PolicyObjective(functools.partial(clipped_surrogate)),
        OptimizerSettings(torch.optim.AdamW),
        logprobs=Logprobs(),
    )
    module.configure_model()
    checkpoint = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    assert checkpoint["vpo_step"] == 0
    return set(checkpoint["state_dict"])


def test_a_checkpoint_of_adapters_holds_them_alone() -> None:
    learning = {name for name, weight in adapted().named_parameters() if weight.requires_grad}
    assert saved_names(adapted) == {f"policy.{name}" for name in learning}


def test_a_checkpoint_of_all_weights_holds_tied_ones_under_each_name() -> None:
    model = tiny_model(tie_word_embeddings=True)
    assert saved_names(lambda: model) == {f"policy.{name}" for name in model.state_dict()}
