"""The reference policy: what the KL penalty keeps the policy close to."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from vpo_lightning.policy.lora import adapted_layers, without_adapters
from vpo_lightning.policy.sharding import shard


class ReferencePolicy:
    """The start policy: the policy without its adapters, or else a frozen copy of it.

    Args:
        policy: The start policy.
        dtype: Of the copy; None for the policy's own.
        mesh: The processes that share the copy; None to keep it whole.
    """

    def __init__(
        self, policy: nn.Module, dtype: torch.dtype | None, mesh: DeviceMesh | None
    ) -> None:
        self._policy = policy
        self._copy: nn.Module | None = None
        if not adapted_layers(policy):
            self._copy = copy.deepcopy(policy).to(dtype).requires_grad_(False).eval()
            if mesh is not None:
                shard(self._copy, mesh, dtype)

    @contextmanager
    def model(self) -> Iterator[nn.Module]:
        """The model to compute log-probabilities with."""
        if self._copy is not None:
            yield self._copy
            return
        with evaluating(self._policy), without_adapters(self._policy):
            yield self._policy

    def to(self, device: torch.device) -> None:
        """Moves the copy, if there is one."""
        if self._copy is not None:
            self._copy.to(device)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; then back to what it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
