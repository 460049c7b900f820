"""Supervised warm-up: teaches a model the answer format from demonstrations of the task.

RL keeps and concentrates the diversity of its start policy, it does not invent it; so the answers
of a chain are drawn independently, and the mix of demonstrations decides what there is to keep.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock
from torch import Tensor, nn

from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.core.types import TokenBatch
from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.forward import completion_logprobs, sharing_obstacle
from vpo_lightning.policy.loading import (
    encode_messages,
    save_model_folder,
)
from vpo_lightning.prompting import GoalConditioned, MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.task import PromptRow, Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Demonstrate = Callable[[PromptRow, Random], str]
# Part of the cache key: raise it when the same settings start to give other weights.
_RECIPE = 1


@dataclass(frozen=True)
class WarmupSettings:
    """How the demonstrations are learned.

    Attributes:
        demonstrations: Draws the text of one answer to a row; None takes the task's own.
        steps: Optimizer steps.
        prompts_per_step: Prompts in one optimizer step.
        singles: Single answers for each prompt.
        chains: Chains of m answers for each prompt.
        m: Answers in a chain.
        goal_fraction: Share of the single answers whose prompt states weights. The answer does not
            follow them: it teaches that such a prompt is answered at all.
        matrix_learning_rate: Of Muon on the matrices of the blocks; 0 trains them with AdamW too.
        learning_rate: Of AdamW on everything else.
        ramp_steps: Steps of linear rise; then a cosine down to zero.
        clip_norm: Largest gradient norm.
        seed: Of weights, prompts and demonstrations.
        encoding: Arguments of `encode_messages` beside tokenizer and messages, those of training.
    """

    demonstrations: Demonstrate | None
    steps: int = 700
    prompts_per_step: int = 16
    singles: int = 2
    chains: int = 2
    m: int = 3
    goal_fraction: float = 0.25
    matrix_learning_rate: float = 0.02
    learning_rate: float = 3e-3
    ramp_steps: int = 40
    clip_norm: float = 1.0
    seed: int = 0
    encoding: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.singles + self.chains < 1:
            raise ConfigError(
                f"warmup.singles={self.singles} and warmup.chains={self.chains}: nothing to learn; "
                "set one of them to at least 1"
            )

    def key(self) -> dict[str, Any]:
        """What decides the result beside model and task, for a cache key."""
        fields = {"recipe": _RECIPE, **asdict(self), "demonstrations": repr(self.demonstrations)}
        return {name: value for name, value in fields.items() if name != "encoding" or value}


def cached_warmup(
    cache: Path,
    key: Mapping[str, Any],
    build: Callable[[], tuple[PreTrainedModel, PreTrainedTokenizerBase]],
    task: Task,
    settings: WarmupSettings,
) -> Path:
    """The model folder of a warm-up, trained now unless the cache holds it.

    A lock makes concurrent runs with one key wait for the one that trains; a folder is complete or
    absent.

    Args:
        cache: Folder of all warm-ups.
        key: Everything the result depends on, JSON-serialisable.
        build: Makes the untrained model and its tokenizer.
        task: Gives prompts and formats.
        settings: How to train.
    """
    text = json.dumps(key, sort_keys=True, default=str)
    folder = cache / hashlib.sha256(text.encode()).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if folder.exists():
            print(f"warm-up: cached in {folder}", flush=True)
            return folder
        model, tokenizer = build()
        print(
            f"warm-up: {settings.steps} steps of supervised training on demonstrations "
            f"(once; cached in {folder})",
            flush=True,
        )
        train_on_demonstrations(model, tokenizer, task, settings)
        (cache / f"{folder.name}.json").write_text(text, encoding="utf-8")
        return save_model_folder(model, tokenizer, folder)


def train_on_demonstrations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    settings: WarmupSettings,
) -> list[float]:
    """Trains `model` in place and returns the loss (nats per token) of each step."""
    rows = task.rows("train")
    source = _Demonstrations(task, tokenizer, settings)
    optimizers = _optimizers(model, settings)
    schedulers = [
        torch.optim.lr_scheduler.LambdaLR(o, lambda i: _rate(i, settings)) for o in optimizers
    ]
    model.train()
    losses: list[float] = []
    start = last_line = time.monotonic()
    for step in range(settings.steps):
        rng = Random(derive_seed(settings.seed, "warmup", step))
        chosen = [rows[rng.randrange(len(rows))] for _ in range(settings.prompts_per_step)]
        loss = demonstration_loss(model, source.batch(chosen, rng))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        for optimizer, scheduler in zip(optimizers, schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        losses.append(loss.item())
        now = time.monotonic()
        if now - last_line > 15 or step + 1 == settings.steps:
            left = (now - start) / (step + 1) * (settings.steps - step - 1)
            print(
                f"warm-up step {step + 1}/{settings.steps}, {left / 60:.1f} min left: "
                f"loss {sum(losses[-20:]) / len(losses[-20:]):.3f} nats per token",
                flush=True,
            )
            last_line = now
    model.eval()
    return losses


def demonstration_loss(model: nn.Module, batch: TokenBatch) -> Tensor:
    """Mean negative log-probability of the demonstrated tokens, in nats."""
    logprobs, _ = completion_logprobs(model, batch, share_prompts=sharing_obstacle(model) is None)
    return -logprobs.sum() / batch.completion_lengths.sum()


class _Demonstrations:
    """Batches of prompts with demonstrated completions."""

    def __init__(
        self, task: Task, tokenizer: PreTrainedTokenizerBase, settings: WarmupSettings
    ) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._settings = settings
        self._demonstrate = settings.demonstrations or task.demonstrate

    def batch(self, rows: Sequence[PromptRow], rng: Random) -> TokenBatch:
        """The demonstrations of `rows` as tensors."""
        prompts: list[list[int]] = []
        completions: list[list[int]] = []
        owners: list[int] = []
        for row in rows:
            for style, weights, count in self._asked(row, rng):
                messages = style.messages(self._task, row, weights)
                encoding = self._settings.encoding
                prompts.append(encode_messages(self._tokenizer, messages, **encoding))
                for _ in range(count):
                    owners.append(len(prompts) - 1)
                    completions.append(self._completion(row, style, rng))
        return TokenBatch(
            prompt_ids=_padded(prompts),
            prompt_lengths=torch.tensor([len(p) for p in prompts]),
            completion_ids=_padded(completions),
            completion_lengths=torch.tensor([len(c) for c in completions]),
            prompt_index=torch.tensor(owners),
        )

    def _asked(
        self, row: PromptRow, rng: Random
    ) -> list[tuple[PromptStyle, list[float] | None, int]]:
        """The prompts of a row: style, weights it states, number of completions."""
        settings = self._settings
        goals = sum(rng.random() < settings.goal_fraction for _ in range(settings.singles))
        asked: list[tuple[PromptStyle, list[float] | None, int]] = []
        for _ in range(goals):
            draws = [rng.expovariate(1.0) for _ in row.objectives]
            asked.append((GoalConditioned(), [d / sum(draws) for d in draws], 1))
        asked.append((SingleAnswer(), None, settings.singles - goals))
        asked.append((MultiAnswer(settings.m), None, settings.chains))
        return [entry for entry in asked if entry[2] > 0]

    def _completion(self, row: PromptRow, style: PromptStyle, rng: Random) -> list[int]:
        answers = [self._demonstrate(row, rng) for _ in range(style.num_answers)]
        text = style.render(self._task, answers)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*ids, self._tokenizer.eos_token_id]  # type: ignore[misc]


def _optimizers(model: nn.Module, settings: WarmupSettings) -> list[torch.optim.Optimizer]:
    """Muon on the matrices inside the blocks, AdamW on embeddings, head and norms."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        is_block_matrix = parameter.ndim == 2 and ".layers." in name
        (matrices if is_block_matrix and settings.matrix_learning_rate else others).append(
            parameter
        )
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    ]
    if matrices:
        optimizers.append(
            torch.optim.Muon(matrices, lr=settings.matrix_learning_rate, weight_decay=0.0)
        )
    return optimizers


def _rate(step: int, settings: WarmupSettings) -> float:
    """Factor of the learning rate: a linear ramp, then a cosine to zero."""
    if step < settings.ramp_steps:
        return (step + 1) / settings.ramp_steps
    span = max(1, settings.steps - settings.ramp_steps)
    return 0.5 * (1 + math.cos(math.pi * (step - settings.ramp_steps) / span))


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
