"""Scoring with its draws against the plain numpy loop, measured in one run on one core."""

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from vpo_lightning.core.scalarization import set_reward
from vpo_lightning.core.seeding import derive_seed
from vpo_lightning.core.weights import dirichlet

PROMPTS, ROLLOUTS, ANSWERS, OBJECTIVES, DRAWS = 512, 8, 3, 16, 100


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


@pytest.mark.slow
def test_scoring_a_batch_is_four_times_as_fast_as_a_numpy_loop() -> None:
    """Both draw Dirichlet(1) weights, which are normalised exponentials."""
    rng = np.random.default_rng(0)
    rewards = rng.random((PROMPTS, ROLLOUTS, ANSWERS, OBJECTIVES))
    seeds = torch.tensor([derive_seed(0, "weights", 1, str(i)) for i in range(PROMPTS)])
    tensor = torch.from_numpy(rewards)

    def loop() -> None:
        for group in rewards:
            w = rng.dirichlet(np.ones(OBJECTIVES), DRAWS)
            for r in group:
                (w @ r.T).max(1).mean()

    def ours() -> None:
        set_reward(tensor, dirichlet(OBJECTIVES, seeds, num_draws=DRAWS))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Interleaved, and the best of each: other work on the machine disturbs both alike.
        pairs = [(seconds(loop), seconds(ours)) for _ in range(15)]
    finally:
        torch.set_num_threads(threads)
    slow, fast = (min(times) for times in zip(*pairs, strict=True))
    print(f"numpy loop {slow * 1e3:.1f} ms, set_reward with draws {fast * 1e3:.1f} ms")
    assert slow / fast >= 4
