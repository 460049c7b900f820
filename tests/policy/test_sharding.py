"""Weights of a policy that two processes share are gathered in step, however slow the sink is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

from tests.tiny_models import tiny_model
from vpo_lightning.policy.sharding import shard
from vpo_lightning.policy.weights import full_weights
from vpo_lightning.rollout.handover import within_seconds


def hand_over_twice(rank: int, folder: str) -> None:
    """Gathers all weights to a sink that is slow on rank 0 alone, changes them, and again."""
    place = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    model = tiny_model(tie_word_embeddings=True)
    shard(model, init_device_mesh("cpu", (2,)), None)
    sunk: dict[str, Tensor] = {}

    def sink() -> None:
        for name, tensor in slowly(full_weights(model), 0.02 if rank == 0 else 0):
            sunk[name] = tensor.clone()

    for _ in range(2):
        within_seconds(60, "gathering", sink)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
    torch.save(sunk, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def slowly(weights: Iterator[tuple[str, Tensor]], seconds: float) -> Iterator[tuple[str, Tensor]]:
    for item in weights:
        time.sleep(seconds)
        yield item


@pytest.mark.slow
def test_a_slow_sink_on_one_process_gets_the_weights_of_all(tmp_path: Path) -> None:
    spawn(hand_over_twice, (str(tmp_path),), nprocs=2)
    expected = tiny_model(tie_word_embeddings=True).state_dict()
    for rank in (0, 1):
        sunk = torch.load(tmp_path / f"{rank}.pt")
        assert sunk.keys() == expected.keys()
        for name, weight in expected.items():
            assert torch.equal(sunk[name], 2 * weight)
