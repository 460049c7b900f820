"""Whether engine and policy give the same tokens the same probabilities, after each hand-over.

A stale prefix cache, a head that was left behind, weights in the wrong layer: each gives an engine
that works and samples from another policy. Two prompts show them all: a long one, which fills
blocks of the prefix cache, and a short one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from vpo_lightning.core.types import TokenBatch
from vpo_lightning.rollout.batch import token_batch
from vpo_lightning.rollout.engine import GenerationRequest, RolloutEngine, SamplingSettings

LONG_PROMPT = 160
"""Tokens of the long prompt: more than a block of vLLM's prefix cache (128 at most by default)."""
_SHORT_PROMPT = 8
_COMPLETION = 16


class Canary:
    """Samples a few tokens and compares the engine's log-probabilities with the policy's.

    Args:
        prompt_ids: A prompt of the task; repeated and cut to the two lengths.
        positions: Longest prompt and completion together that the engine takes, in tokens.
        temperature: Of the run's rollouts.
    """

    def __init__(self, prompt_ids: Sequence[int], positions: int, temperature: float) -> None:
        tokens = max(1, min(_COMPLETION, positions // 4))
        longest = min(LONG_PROMPT, positions - tokens)
        repeated = list(prompt_ids) * -(-longest // len(prompt_ids))
        prompts = (repeated[:longest], repeated[:_SHORT_PROMPT])
        self._requests = [
            GenerationRequest(f"canary {len(prompt)}", prompt, [0]) for prompt in prompts
        ]
        self._sampling = SamplingSettings(tokens, temperature=temperature)

    def mismatch(
        self,
        engine: RolloutEngine,
        policy_logprobs: Callable[[TokenBatch], Float[Tensor, "R T"]],
    ) -> float:
        """The largest difference of a log-probability, in nats.

        Args:
            engine: Holds the policy's weights.
            policy_logprobs: The policy's log-probabilities of completions.
        """
        completions = engine.generate(self._requests, self._sampling)
        groups = list(zip([r.prompt_ids for r in self._requests], completions, strict=True))
        theirs = policy_logprobs(token_batch(groups)).double().cpu()
        ours = [completion.logprobs for group in completions for completion in group]
        return max(
            abs(float(a) - b)
            for row, logprobs in zip(theirs, ours, strict=True)
            for a, b in zip(row, logprobs, strict=False)
        )
