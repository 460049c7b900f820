"""A trained policy as a folder that transformers, peft and vLLM load."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vpo_lightning.policy.loading import expanded, load_tokenizer, save_model_folder
from vpo_lightning.policy.lora import save_adapters
from vpo_lightning.policy.weights import adapter_weights, full_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER_FOLDER = "adapter"


def export_policy(
    policy: nn.Module,
    start: str,
    folder: Path,
    *,
    dtype: torch.dtype,
    is_writer: bool = True,
    trust_remote_code: bool = False,
) -> None:
    """Writes the policy with its adapters merged, and the adapters in a folder of their own.

    All processes that share a sharded policy have to call.

    Args:
        policy: The trained policy.
        start: Folder or Hub id of the start policy: its configs and tokenizer are the policy's too.
        folder: Replaced by the call.
        dtype: Of the merged weights.
        is_writer: Whether this process writes; the others only take part in gathering.
        trust_remote_code: Run the Python code of the start policy's folder.
    """
    weights: dict[str, Tensor] = {}
    for name, tensor in full_weights(policy, dtype):
        if is_writer:
            weights[name] = tensor.cpu()
    adapters = adapter_weights(policy)
    if not is_writer:
        return

    def add(new: Path) -> None:
        if adapters:
            on_cpu = {name: tensor.cpu() for name, tensor in adapters.items()}
            save_adapters(policy, on_cpu, new / ADAPTER_FOLDER, expanded(start))  # type: ignore[arg-type]

    skeleton = _skeleton(start, dtype, trust_remote_code)
    tokenizer = load_tokenizer(start, trust_remote_code=trust_remote_code)
    save_model_folder(skeleton, tokenizer, folder, weights, add)


def _skeleton(start: str, dtype: torch.dtype, trusted: bool) -> PreTrainedModel:
    """The start model without weights: the policy itself may be sharded or hold adapters."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.from_pretrained(expanded(start), trust_remote_code=trusted)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=trusted)
    with contextlib.suppress(OSError):  # not every folder has one
        model.generation_config = GenerationConfig.from_pretrained(expanded(start))
    return model
