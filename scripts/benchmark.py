"""Times the parts of a training step on this machine: python scripts/benchmark.py generation.

The sizes are those of the maze quickstart: 24 prompts of 50 tokens, 8 completions each of up to 48
tokens with ragged ends, the 0.2M-parameter model, one thread. The rivals run in turn in one
process, and medians of process time are compared, so that a busy machine disturbs both alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from random import Random
from typing import Any

import torch

from vpo_lightning.core.types import TokenBatch
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.policy.scratch import ScratchModel
from vpo_lightning.rollout.engine import GenerationRequest, SamplingSettings
from vpo_lightning.rollout.hf_engine import HFEngine

PROMPTS, GROUP, PROMPT_TOKENS, MAX_TOKENS = 24, 8, 50, 48
VOCABULARY = 446
# Each of these ends a sequence, so that a completion of the untrained model has about 25 tokens.
ENDS = [1, *range(100, 112)]


def generation(rounds: int) -> float:
    """Prints the time of one rollout batch; returns how many times faster than transformers."""
    model, tokenizer = _model()
    engine = HFEngine.from_model(model, tokenizer)
    rng = Random(0)
    requests = [
        GenerationRequest(str(i), ids, [rng.randrange(2**63) for _ in range(GROUP)])
        for i, ids in enumerate(_prompts(rng))
    ]
    sampling = SamplingSettings(max_tokens=MAX_TOKENS)
    rows = torch.tensor([list(r.prompt_ids) for r in requests]).repeat_interleave(GROUP, 0)

    def own() -> int:
        groups = engine.generate(requests, sampling)
        return sum(len(completion.ids) for group in groups for completion in group)

    @torch.no_grad()
    def rival() -> int:
        ids = model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            max_new_tokens=MAX_TOKENS,
            do_sample=True,
            top_k=0,
        )[:, PROMPT_TOKENS:]
        return int((ids != tokenizer.pad_token_id).sum())

    return _compare({"transformers generate": rival, "hf engine": own}, rounds)


def update(rounds: int) -> float:
    """Prints forward and backward of one batch; returns how much faster shared prompts are."""
    model, _ = _model()
    rng = torch.Generator().manual_seed(0)
    rows = PROMPTS * GROUP
    batch = TokenBatch(
        prompt_ids=torch.tensor(_prompts(Random(0))),
        prompt_lengths=torch.full((PROMPTS,), PROMPT_TOKENS),
        completion_ids=torch.randint(3, VOCABULARY, (rows, MAX_TOKENS), generator=rng),
        completion_lengths=torch.randint(12, MAX_TOKENS + 1, (rows,), generator=rng),
        prompt_index=torch.arange(PROMPTS).repeat_interleave(GROUP),
    )

    def step(share_prompts: bool) -> int:
        logprobs, _ = completion_logprobs(model, batch, share_prompts=share_prompts)
        logprobs.sum().backward()
        return int(batch.completion_lengths.sum())

    return _compare(
        {"plain rows": lambda: step(False), "shared prompts": lambda: step(True)}, rounds
    )


def _model() -> tuple[Any, Any]:
    words = [f"w{i}" for i in range(VOCABULARY - 3)]
    model, tokenizer = ScratchModel().build(words, seed=0)
    model.generation_config.eos_token_id = ENDS
    return model, tokenizer


def _prompts(rng: Random) -> list[list[int]]:
    return [[rng.randrange(3, VOCABULARY) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]


def _compare(work: dict[str, Callable[[], int]], rounds: int) -> float:
    """Prints median seconds and tokens per second; returns first over last."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    tokens = {name: function() for name, function in work.items()}  # also warms up
    for _ in range(rounds):
        for name, function in work.items():
            start = time.process_time()
            function()
            seconds[name].append(time.process_time() - start)
    medians = {name: sorted(values)[len(values) // 2] for name, values in seconds.items()}
    for name, median in medians.items():
        speed = tokens[name] / median
        print(f"{name:24}{median:8.3f} s{tokens[name]:8d} tokens{speed:10.0f} tokens/s")
    first, *_, last = medians
    ratio = medians[first] / medians[last]
    print(f"{last} is {ratio:.2f} times as fast as {first}")
    return ratio


if __name__ == "__main__":
    parts = {"generation": generation, "update": update}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--rounds", type=int, default=7, help="timed runs of each rival")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts[arguments.part](arguments.rounds)
