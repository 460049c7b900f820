"""How the log-probabilities of rollouts are computed, whatever form the policy has."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vpo_lightning.core.types import TokenBatch
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.policy.sharding import is_sharded


@dataclass(frozen=True)
class Logprobs:
    """Computes log-probabilities and entropies of completions, see `completion_logprobs`.

    Attributes:
        temperature: Of sampling the rollouts; the probabilities are of that distribution.
        share_prompts: Compute each prompt once for its completions; not with sharded weights.
        dtype: Of matrix products, for weights that are wider (autocast); None for the weights' own.
    """

    temperature: float = 1.0
    share_prompts: bool = True
    dtype: torch.dtype | None = None

    def __call__(
        self, model: nn.Module, tokens: TokenBatch
    ) -> tuple[Float[Tensor, "R T"], Float[Tensor, "R T"]]:
        """Log-probability of each completion token and entropy of its distribution, in nats.

        Processes that share a sharded model have to call together, also those that have no
        completions: they compute one that counts nothing.
        """
        is_empty = tokens.completion_ids.shape[0] == 0
        if is_empty and not is_sharded(model):
            zeros = torch.zeros(tokens.completion_ids.shape, device=tokens.completion_ids.device)
            return zeros, zeros
        given = _placeholder(tokens.completion_ids.device) if is_empty else tokens
        compute = getattr(
            model, "completion_logprobs", functools.partial(completion_logprobs, model)
        )
        with self._products(model, given):
            logprobs, entropy = compute(
                given, temperature=self.temperature, share_prompts=self.share_prompts
            )
        # The gradient of a factor 0 still takes part in the exchange of gradients.
        return (logprobs * 0, entropy * 0) if is_empty else (logprobs, entropy)

    def _products(self, model: Any, tokens: TokenBatch) -> AbstractContextManager[Any]:
        if self.dtype in (None, model.dtype) or is_sharded(model):
            return nullcontext()
        return torch.autocast(tokens.completion_ids.device.type, self.dtype)


def _placeholder(device: torch.device) -> TokenBatch:
    """One prompt of one token with a completion of one token."""
    ids, one = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long)
    index = torch.zeros(1, dtype=torch.long)
    batch = TokenBatch(ids, one, ids, one, index)
    return TokenBatch(**{name: value.to(device) for name, value in vars(batch).items()})
