"""The training process, which also writes down what each process and its engine hold after a step.

``torchrun recorded_worker.py <run folder> [early]``; `early` builds the engine before the trainer
has set up the group of processes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from torch import nn

from vpo_lightning import build, training, worker
from vpo_lightning.lightning.callbacks.engine import RolloutEngineCallback
from vpo_lightning.lightning.module import VPOModule
from vpo_lightning.policy.weights import full_weights
from vpo_lightning.rollout.engine import GenerationRequest, RolloutEngine, SamplingSettings

FOLDER = Path(sys.argv[1])


class RecordingCallback(RolloutEngineCallback):
    """Writes ``rank_<n>.jsonl``: version, a hash of the weights, greedy tokens of the engine."""

    def push(self, module: VPOModule, version: int) -> bool:
        """Hands over the weights, then writes them down."""
        is_new = super().push(module, version)
        if is_new:
            digest = hashlib.sha256()
            for name, tensor in full_weights(cast(nn.Module, module.policy)):
                digest.update(name.encode() + tensor.cpu().numpy().tobytes())
            request = GenerationRequest("recorded", list(range(3, 40)), [0])
            engine = cast(RolloutEngine, self.engine)
            completion = engine.generate([request], SamplingSettings(12, temperature=0.0))[0][0]
            record: dict[str, Any] = {
                "version": engine.version,
                "weights": digest.hexdigest(),
                "ids": completion.ids,
                "logprobs": completion.logprobs,
            }
            with (FOLDER / f"rank_{module.global_rank}.jsonl").open("a") as file:
                file.write(json.dumps(record) + "\n")
        return is_new


def main() -> int:
    """Trains as the worker does."""
    training.RolloutEngineCallback = RecordingCallback  # type: ignore[misc]
    if sys.argv[2:] == ["early"]:
        cfg = cast(DictConfig, OmegaConf.load(FOLDER / "config.yaml"))
        engine = build.build_engine(cfg, build.start_policy(cfg), "cpu")
        build.build_engine = lambda *arguments: engine
    del sys.argv[2:]
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
