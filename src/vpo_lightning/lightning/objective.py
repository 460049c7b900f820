"""The loss of a micro-batch: surrogate, KL to the reference, aggregation; and what is logged of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vpo_lightning.core.losses import KlEstimator, kl_estimate
from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.batch import MicroBatch

Surrogate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class PolicyObjective:
    """Token-mean policy loss with a KL penalty to the reference policy.

    Attributes:
        surrogate: ``(logprobs (R, T), old_logprobs (R, T), advantages (R, 1), mask (R, T))`` to the
            loss of each token (R, T).
        kl_coefficient: Weight of the KL term in the loss; 0 keeps no reference policy.
        kl_estimator: "k1", "k2" or "k3".

    Raises:
        ConfigError: A negative coefficient or an unknown estimator.
    """

    surrogate: Surrogate
    kl_coefficient: float = 1e-3
    kl_estimator: KlEstimator = "k3"

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.kl_coefficient < 0:
            raise ConfigError(f"loss.kl_coefficient={self.kl_coefficient}: it must not be negative")
        if self.kl_estimator not in ("k1", "k2", "k3"):
            raise ConfigError(f"loss.kl_estimator={self.kl_estimator}: it must be k1, k2 or k3")

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept."""
        return self.kl_coefficient > 0

    def __call__(
        self,
        batch: MicroBatch,
        logprobs: Float[Tensor, "R T"],
        entropy: Float[Tensor, "R T"],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The summed token losses, and sums over tokens for the log.

        The caller divides by `batch.step_tokens`.
        """
        mask = batch.tokens.completion_mask()
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        advantages = batch.advantages.to(logprobs.dtype)[:, None]
        total = self.surrogate(logprobs, old, advantages, mask).sum()
        sums = {
            "tokens": mask.sum(),
            "loss": total,
            "entropy": torch.where(mask, entropy, 0.0).sum(),
        }
        mismatch = torch.where(mask, (old - batch.engine_logprobs).abs(), 0.0)
        sums["mismatch"] = mismatch.sum()
        sums["ratio_moved"] = torch.where(mask, (logprobs - old).abs().exp() - 1, 0.0).sum()
        if batch.reference_logprobs is not None:
            kl = kl_estimate(logprobs, batch.reference_logprobs, mask, self.kl_estimator)
            kl_sum = kl.sum()
            total = total + self.kl_coefficient * kl_sum
            sums["kl"] = kl_sum
        return total, sums

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Token means by metric key, from sums over all micro-batches and processes of a step."""
        tokens = sums.get("tokens", 0.0)
        if not tokens:
            return {"train/loss": 0.0}
        named = {
            "train/loss": "loss",
            "train/entropy": "entropy",
            "train/kl": "kl",
            "train/ratio_deviation": "ratio_moved",
            "rollout/logprob_mismatch": "mismatch",
        }
        return {key: sums[name] / tokens for key, name in named.items() if name in sums}
