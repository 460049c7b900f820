"""The policy as training starts it: weights in the precision of training, adapters if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vpo_lightning.policy.loading import PretrainedModel, load_model
from vpo_lightning.policy.lora import add_adapters
from vpo_lightning.policy.scratch import ScratchModel

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def load_start_policy(
    folder: str | Path, source: PretrainedModel | ScratchModel, seed: int
) -> PreTrainedModel:
    """The start policy on the CPU, ready to be trained.

    With adapters the model's own weights are frozen in ``model.dtype`` and the adapters have
    ``model.master_dtype``; without, all weights have ``model.master_dtype``.

    Args:
        folder: Model folder or Hub id.
        source: The settings of the model.
        seed: Of the adapters.

    Raises:
        ConfigError: An adapter for a layer that the model does not have.
    """
    trained = trained_dtype(source)
    model = load_model(
        folder,
        source.dtype if source.lora.rank else str(trained).removeprefix("torch."),
        source.attention,
        trust_remote_code=source.trust_remote_code,
    )
    if source.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    if source.lora.rank:
        add_adapters(model, source.lora, trained, seed)
    return model


def trained_dtype(source: PretrainedModel | ScratchModel) -> torch.dtype:
    """The dtype of the weights that the optimizer changes: the wider one of the two settings."""
    import torch

    computing: torch.dtype = getattr(torch, source.dtype)
    if source.master_dtype is None:
        return computing
    return torch.promote_types(computing, getattr(torch, source.master_dtype))
