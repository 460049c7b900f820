"""Every loss yaml with every option, against loops over tokens written from the formulas."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from tests.configs.test_yaml import CONF, composed
from vpo_lightning.core.aggregation import AGGREGATIONS
from vpo_lightning.core.types import TokenBatch
from vpo_lightning.lightning.objective import PolicyObjective
from vpo_lightning.rollout.batch import MicroBatch

LENGTHS = [3, 1, 0, 6, 2]
WIDTH, LIMIT = 6, 8
LOSSES = sorted(path.stem for path in (CONF / "loss").glob("*.yaml"))


def micro_batch(seed: int, spread: float) -> tuple[MicroBatch, Tensor]:
    """Rows of unequal lengths, one empty, with odd advantages and missing engine numbers."""
    generator = torch.Generator().manual_seed(seed)

    def near(values: Tensor) -> Tensor:
        noise = torch.randn(values.shape, generator=generator, dtype=torch.float64)
        return values + spread * noise

    rows = len(LENGTHS)
    logprobs = -torch.rand(rows, WIDTH, generator=generator, dtype=torch.float64) * 3
    old = near(logprobs)
    engine = near(old)
    engine[0, 1] = torch.nan
    engine[4] = torch.nan
    advantages = torch.tensor([1.5, -0.7, 2.0, 0.0, -4.0], dtype=torch.float64)
    tokens = TokenBatch(
        prompt_ids=torch.ones(1, 1, dtype=torch.long),
        prompt_lengths=torch.ones(1, dtype=torch.long),
        completion_ids=torch.ones(rows, WIDTH, dtype=torch.long),
        completion_lengths=torch.tensor(LENGTHS),
        prompt_index=torch.zeros(rows, dtype=torch.long),
    )
    batch = MicroBatch(
        tokens=tokens,
        advantages=advantages,
        has_signal=advantages != 0,
        engine_logprobs=engine,
        step_tokens=sum(LENGTHS),
        policy_version=0,
        old_logprobs=old,
        reference_logprobs=near(logprobs),
        step_rows=sum(length > 0 for length in LENGTHS),
    )
    return batch, logprobs


def kl(estimator: str, logprob: float, reference: float) -> float:
    d = logprob - reference
    return {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[estimator]


def surrogate(cfg: DictConfig, row: list[tuple[float, float]], t: int, advantage: float) -> float:
    """The loss of one token, given (logprob, old) of its whole row."""
    slot, (logprob, old) = cfg.surrogate, row[t]
    name = slot._target_.rpartition(".")[2]
    if name == "reinforce":
        return -advantage * logprob
    ratio = math.exp(logprob - old)
    if name == "cispo":
        return -min(max(ratio, slot.min_ratio), slot.max_ratio) * advantage * logprob
    if name == "gspo":
        ratio = math.exp(sum(a - b for a, b in row) / len(row))
    clipped = min(max(ratio, 1 - slot.clip_low), 1 + slot.clip_high)
    gain = min(ratio * advantage, clipped * advantage)
    if slot.get("dual_clip") is not None and advantage < 0:
        gain = max(gain, slot.dual_clip * advantage)
    return -gain


def importance(cfg: DictConfig, differences: list[float], t: int) -> float:
    if cfg.importance_level is None:
        return 1.0
    found = [0.0 if math.isnan(d) else d for d in differences]
    weight = math.exp(found[t] if cfg.importance_level == "token" else sum(found))
    if weight <= cfg.importance_cap:
        return weight
    return cfg.importance_cap if cfg.importance_over_cap == "truncate" else 0.0


def aggregated(name: str, rows: list[list[float]]) -> float:
    count = sum(bool(row) for row in rows)
    if name == "token_mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if name == "seq_mean_token_mean":
        return sum(sum(row) / len(row) for row in rows if row) / count
    return sum(map(sum, rows)) / (count if name == "seq_mean_token_sum" else count * LIMIT)


def naive(cfg: DictConfig, batch: MicroBatch, logprobs: Tensor) -> float:
    assert batch.old_logprobs is not None
    assert batch.reference_logprobs is not None
    losses: list[list[float]] = []
    penalties: list[list[float]] = []
    for i, length in enumerate(LENGTHS):
        new, old, engine, reference = (
            values[i, :length].tolist()
            for values in (
                logprobs,
                batch.old_logprobs,
                batch.engine_logprobs,
                batch.reference_logprobs,
            )
        )
        losses.append([])
        for t in range(length):
            advantage = float(batch.advantages[i])
            if cfg.kl_in == "reward":
                advantage -= cfg.kl_coefficient * kl(cfg.kl_estimator, old[t], reference[t])
            weight = importance(cfg, [a - b for a, b in zip(old, engine, strict=True)], t)
            pairs = list(zip(new, old, strict=True))
            losses[-1].append(weight * surrogate(cfg, pairs, t, advantage))
        penalties.append([kl(cfg.kl_estimator, new[t], reference[t]) for t in range(length)])
    total = aggregated(cfg.aggregation, losses)
    if cfg.kl_in == "loss":
        total += cfg.kl_coefficient * aggregated(cfg.aggregation, penalties)
    return total


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_formula_with_every_option(name: str) -> None:
    shipped = composed("train", f"loss={name}", f"rollout.sampling.max_tokens={LIMIT}").loss
    cfg: Any = OmegaConf.create(OmegaConf.to_container(shipped, resolve=True))
    for case, (aggregation, estimator, kl_in, level, over_cap) in enumerate(
        itertools.product(
            AGGREGATIONS,
            ("k1", "k2", "k3"),
            ("loss", "reward"),
            (None, "token", "sequence"),
            ("truncate", "drop"),
        )
    ):
        cfg.aggregation, cfg.kl_estimator, cfg.kl_in = aggregation, estimator, kl_in
        cfg.importance_level, cfg.importance_over_cap = level, over_cap
        cfg.kl_coefficient, cfg.max_tokens = 0.3, LIMIT
        batch, logprobs = micro_batch(case, spread=(0.1, 0.6, 2.0)[case % 3])
        objective: PolicyObjective = instantiate(cfg)
        found, sums = objective(batch, logprobs, torch.zeros_like(logprobs))
        loss = float(found) / objective.divisor(batch)
        assert loss == pytest.approx(naive(cfg, batch, logprobs), rel=1e-9), OmegaConf.to_yaml(cfg)
        assert float(sums["tokens"]) == sum(LENGTHS)
