"""The full weights of a policy, whether they are plain, sharded, or a base with adapters."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.lora import adapted_layers, is_adapter, merged


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """A checkpoint of training, on the CPU.

    Raises:
        ConfigError: The file is none, or was cut short.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, KeyError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"{path}: no readable checkpoint ({reason}); remove it, and training starts from the "
            "beginning, or restore it"
        ) from error


def full_weights(
    policy: nn.Module, dtype: torch.dtype | None = None
) -> Iterator[tuple[str, Tensor]]:
    """The policy's weights by the state-dict names of its start model, one at a time.

    A tied weight comes under each of its names. Adapters are merged into a copy: the policy is left
    as it is. A sharded weight is gathered on all processes, which have to iterate in step and to
    the end.

    Args:
        policy: Plain, sharded or with adapters.
        dtype: What weights are rounded to; None for their own.
    """
    layers = adapted_layers(policy)
    for name, value in policy.state_dict().items():
        if is_adapter(name):
            continue
        tensor = gathered(value)
        layer_name, _, kind = name.rpartition(".base_layer.")
        if layer_name and kind == "weight":
            adapter = layers[layer_name]
            (a,), (b,) = adapter.lora_A.values(), adapter.lora_B.values()
            tensor = merged(adapter, tensor, gathered(a.weight), gathered(b.weight))
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        yield name.replace(".base_layer.", "."), tensor


def adapter_weights(policy: nn.Module) -> dict[str, Tensor]:
    """The full weights of the adapters, by state-dict name; empty without adapters."""
    return {name: gathered(w) for name, w in policy.state_dict().items() if is_adapter(name)}


def load_full_weights(policy: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Puts full weights by state-dict name into the policy; those that do not come stay."""
    options = StateDictOptions(full_state_dict=True, strict=False)
    set_model_state_dict(policy, dict(weights), options=options)


def gathered(tensor: Tensor) -> Tensor:
    """A weight without its gradient; the whole of a sharded one, on all processes together."""
    full = tensor.detach()
    return full.full_tensor() if hasattr(full, "full_tensor") else full  # type: ignore[operator]
