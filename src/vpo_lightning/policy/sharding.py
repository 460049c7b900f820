"""A policy whose weights are shared out over processes (FSDP2)."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from vpo_lightning.policy.forward import completion_logprobs

_METHOD = "completion_logprobs"


def shard(model: nn.Module, mesh: DeviceMesh, dtype: torch.dtype | None) -> None:
    """Shares out the weights: each process keeps a part, and gathers one block at a time.

    A decoder block is one unit; the embedding, the last norm and the output head are another. The
    model gets its log-probabilities as a method, since only methods that FSDP knows of gather the
    weights they need.

    Args:
        model: Changed in place; with its adapters, if it has any.
        mesh: One dimension of processes.
        dtype: Weights are rounded to it when they are gathered; None keeps theirs. Gradients are
            averaged in the dtype of the weights.
    """
    language_model: Any = model
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=_trained_dtype(model))
    for block in language_model.get_decoder().layers:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    setattr(model, _METHOD, types.MethodType(completion_logprobs, model))
    register_fsdp_forward_method(model, _METHOD)


def is_sharded(model: nn.Module) -> bool:
    """Whether the weights are shared out over processes."""
    return hasattr(model, _METHOD)


def _trained_dtype(model: nn.Module) -> torch.dtype | None:
    return next((p.dtype for p in model.parameters() if p.requires_grad), None)
