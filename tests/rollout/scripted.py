"""A collector whose engine says what a test wrote down, and whose answers are reward vectors."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tests.task_layer.toy import VectorTask
from vpo_lightning.core.advantages import group_normalized
from vpo_lightning.core.scalarization import set_reward
from vpo_lightning.core.weights import dirichlet
from vpo_lightning.prompting import MultiAnswer, PromptStyle, SingleAnswer
from vpo_lightning.rollout.collector import RolloutCollector
from vpo_lightning.rollout.credit import Method
from vpo_lightning.rollout.engine import Completion, GenerationRequest, SamplingSettings
from vpo_lightning.scoring import RewardVector
from vpo_lightning.task import Objective, PromptRow

Vectors = Sequence[Sequence[float]]


class ScriptedEngine:
    """Answers each prompt with the texts given for it, and keeps the requests."""

    def __init__(self, texts: Mapping[str, Sequence[str]]) -> None:
        self.version, self.positions = 0, 1024
        self.requests: list[GenerationRequest] = []
        self._texts = texts

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        self.requests += requests
        return [
            [
                Completion([5] * (len(text) % 7 + 1), [-1.0] * (len(text) % 7 + 1), text, "eos")
                for text in self._texts[request.id]
            ]
            for request in requests
        ]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        self.version = version

    def close(self) -> None:
        pass


def row(name: str, objectives: int = 2) -> PromptRow:
    """A prompt with that many objectives."""
    return PromptRow(
        name, "Which?", {}, tuple(Objective(f"o{k}", f"much o{k}") for k in range(objectives))
    )


def vpo(prompt: PromptStyle | None = None, **slots: Any) -> Method:
    """VPO, with other slots on request."""
    settings: dict[str, Any] = {
        "weights": dirichlet,
        "set_reward": functools.partial(set_reward, over_answers="max"),
        "advantage": group_normalized,
        "reward_vector": RewardVector(),
        **slots,
    }
    return Method(prompt=prompt or MultiAnswer(5), **settings)


def collector(
    groups: Mapping[str, Sequence[Vectors]], method: Method, **settings: Any
) -> RolloutCollector:
    """A collector whose engine writes each rollout's vectors; missing ones leave no row."""
    task = VectorTask(pads_answers=False, drops_unparsed=True)
    texts = {
        name: [
            method.prompt.render(task, [json.dumps(list(vector)) for vector in vectors])
            if vectors or not isinstance(method.prompt, SingleAnswer)
            else ""
            for vectors in rollouts
        ]
        for name, rollouts in groups.items()
    }
    made = RolloutCollector(
        task=task,
        method=method,
        encode=lambda messages: [7] * (len(messages[-1]["content"]) % 5 + 1),
        sampling=SamplingSettings(max_tokens=8),
        group_size=len(next(iter(groups.values()))),
        seed=3,
        **settings,
    )
    made.engine = ScriptedEngine(texts)
    return made
