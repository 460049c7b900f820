"""The loss of a micro-batch: surrogate, importance weights, KL, aggregation; and its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from vpo_lightning.core.aggregation import (
    AGGREGATIONS,
    Aggregation,
    StepTotals,
    denominator,
    numerator,
)
from vpo_lightning.core.importance import Level, OverCap, importance_weights
from vpo_lightning.core.losses import KlEstimator, kl_estimate
from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.batch import MicroBatch

Surrogate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class PolicyObjective:
    """The policy loss with a KL penalty to the reference policy.

    Attributes:
        surrogate: ``(logprobs (R, T), old_logprobs (R, T), advantages (R, 1 or T), mask (R, T))``
            to the loss of each token (R, T).
        kl_coefficient: Weight of the KL penalty; 0 keeps no reference policy.
        kl_estimator: "k1", "k2" or "k3".
        kl_in: "loss" adds the differentiable estimate to the loss. "reward" lowers each token's
            advantage by coefficient x estimate of the old log-probabilities: no gradient flows
            through it, and it comes after the group's normalisation, so it does not change which
            rollout of a group is the better one.
        aggregation: How token losses become one number, see `core.aggregation`.
        max_tokens: Completion length limit, for the aggregation "seq_mean_token_sum_norm".
        importance_level: Weigh the surrogate by ``exp(old - engine)`` for each "token" or whole
            "sequence"; None trusts the engine. The KL term is not weighed.
        importance_cap: Largest weight.
        importance_over_cap: "truncate" keeps the cap as the weight, "drop" gives 0.
        importance_warning: Warn when a larger fraction of the tokens or sequences is above the cap.

    Raises:
        ConfigError: A value outside its range.
    """

    surrogate: Surrogate
    kl_coefficient: float = 1e-3
    kl_estimator: KlEstimator = "k3"
    kl_in: Literal["loss", "reward"] = "loss"
    aggregation: Aggregation = "token_mean"
    max_tokens: int | None = None
    importance_level: Level | None = None
    importance_cap: float = 2.0
    importance_over_cap: OverCap = "truncate"
    importance_warning: float = 0.1

    def __post_init__(self) -> None:
        """Checks the values."""
        if self.kl_coefficient < 0:
            raise ConfigError(f"loss.kl_coefficient={self.kl_coefficient}: it must not be negative")
        if self.importance_cap <= 0:
            raise ConfigError(f"loss.importance_cap={self.importance_cap}: it must be positive")
        for name, choices in (
            ("kl_estimator", ("k1", "k2", "k3")),
            ("kl_in", ("loss", "reward")),
            ("aggregation", AGGREGATIONS),
            ("importance_level", (None, "token", "sequence")),
            ("importance_over_cap", ("truncate", "drop")),
        ):
            if getattr(self, name) not in choices:
                names = ", ".join("null" if choice is None else choice for choice in choices)
                raise ConfigError(f"loss.{name}={getattr(self, name)}: it must be one of {names}")
        if self.aggregation == "seq_mean_token_sum_norm" and not self.max_tokens:
            raise ConfigError(
                f"loss.max_tokens={self.max_tokens}: loss.aggregation={self.aggregation} needs the "
                "length limit; set loss.max_tokens=${rollout.sampling.max_tokens}"
            )

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept."""
        return self.kl_coefficient > 0

    def divisor(self, batch: MicroBatch) -> int:
        """What the loss of a micro-batch is divided by: a number of the whole optimizer step."""
        totals = StepTotals(batch.step_tokens, batch.step_rows)
        return denominator(totals, self.aggregation, self.max_tokens)

    def __call__(
        self,
        batch: MicroBatch,
        logprobs: Float[Tensor, "R T"],
        entropy: Float[Tensor, "R T"],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss before its division by `divisor`, and sums for the log, without gradient."""
        mask = batch.tokens.completion_mask()
        old = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
        sums: dict[str, Tensor] = {"tokens": mask.sum(), "rows": mask.any(dim=-1).sum()}
        losses = self.surrogate(logprobs, old, self._advantages(batch, old, mask), mask)
        if self.importance_level is not None:
            losses = losses * self._importance(old, batch.engine_logprobs, mask, sums)
        total = numerator(losses, mask, self.aggregation)
        sums["loss"] = total
        sums["entropy"] = torch.where(mask, entropy, 0.0).sum()
        sums["mismatch"] = _masked_sum((old - batch.engine_logprobs).abs(), mask)
        sums["ratio_moved"] = torch.where(mask, (logprobs - old).abs().exp() - 1, 0.0).sum()
        if batch.reference_logprobs is not None:
            kl = kl_estimate(logprobs, batch.reference_logprobs, mask, self.kl_estimator)
            sums["kl"] = kl.sum()
            if self.kl_in == "loss":
                total = total + self.kl_coefficient * numerator(kl, mask, self.aggregation)
        return total, {key: value.detach() for key, value in sums.items()}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Figures by metric key, from sums over all micro-batches and processes of a step."""
        tokens = sums.get("tokens", 0.0)
        if not tokens:
            return {"train/loss": 0.0}
        totals = StepTotals(int(tokens), int(sums.get("rows", 0)))
        figures = {
            "train/loss": sums["loss"] / denominator(totals, self.aggregation, self.max_tokens)
        }
        token_means = {
            "train/entropy": "entropy",
            "train/kl": "kl",
            "train/ratio_deviation": "ratio_moved",
            "train/logprob_mismatch": "mismatch",
            "train/importance_missing_fraction": "importance_missing",
        }
        for key, name in token_means.items():
            if name in sums:
                figures[key] = sums[name] / tokens
        if "importance_capped" in sums:
            capped = sums["importance_capped"] / max(sums["importance_units"], 1.0)
            figures["train/importance_capped_fraction"] = capped
            self._warn_if_capped(capped)
        return figures

    def _advantages(
        self, batch: MicroBatch, old: Float[Tensor, "R T"], mask: Bool[Tensor, "R T"]
    ) -> Float[Tensor, "R C"]:
        advantages = batch.advantages.to(old.dtype)[:, None]
        if self.kl_in == "loss" or batch.reference_logprobs is None:
            return advantages
        penalty = kl_estimate(old, batch.reference_logprobs, mask, self.kl_estimator).detach()
        return advantages - self.kl_coefficient * penalty

    def _importance(
        self,
        old: Float[Tensor, "R T"],
        engine: Float[Tensor, "R T"],
        mask: Bool[Tensor, "R T"],
        sums: dict[str, Tensor],
    ) -> Float[Tensor, "R T"]:
        """The weights; adds to `sums` how many were capped or had no engine log-probability."""
        assert self.importance_level is not None
        found = importance_weights(
            old,
            engine,
            mask,
            level=self.importance_level,
            cap=self.importance_cap,
            over_cap=self.importance_over_cap,
        )
        units = torch.tensor(float(found.num_units), device=old.device)
        sums["importance_units"] = units
        sums["importance_capped"] = units * found.capped_fraction
        sums["importance_missing"] = mask.sum() * found.missing_fraction
        return found.weights

    def _warn_if_capped(self, fraction: float) -> None:
        if fraction <= self.importance_warning:
            return
        what = "replaced by the cap" if self.importance_over_cap == "truncate" else "left out"
        # To 10 %, so that a long run repeats itself at most ten times.
        rank_zero_warn(
            f"about {fraction:.0%} of the {self.importance_level}s have an importance weight above "
            f"loss.importance_cap={self.importance_cap} and are {what}; a sequence's weight grows "
            "exponentially with its length: use loss.importance_level=token, or raise the cap"
            if fraction >= 0.95
            else f"more than {int(fraction * 10) * 10} % of the {self.importance_level}s have an "
            f"importance weight above loss.importance_cap={self.importance_cap} and are {what}; "
            "engine and policy disagree: see rollout/logprob_mismatch"
        )


def _masked_sum(values: Float[Tensor, "R T"], mask: Bool[Tensor, "R T"]) -> Tensor:
    """The sum inside the mask; a missing engine log-probability is NaN and counts as agreement."""
    return torch.where(mask & ~values.isnan(), values, 0.0).sum()
