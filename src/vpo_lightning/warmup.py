"""vpo-warmup: teaches a model the answer format by supervised training, and prints its folder."""

from __future__ import annotations

import sys

from omegaconf import DictConfig

from vpo_lightning import build, rules
from vpo_lightning.entry import run
from vpo_lightning.errors import ConfigError


def main() -> None:
    """Entry point."""
    sys.exit(run(job, "warmup"))


def job(cfg: DictConfig) -> None:
    """Trains the warm-up unless it is cached."""
    if not cfg.warmup:
        raise ConfigError("warmup=none: nothing to train; choose a warmup, e.g. warmup=maze")
    rules.check_ranges(cfg)
    build.build_task(cfg).check()
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    print(build.start_policy(cfg))


if __name__ == "__main__":
    main()
