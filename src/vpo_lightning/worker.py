"""The process that trains: ``python -m vpo_lightning.worker <run folder>``, or under torchrun.

Everything it needs is in ``config.yaml`` of the run folder.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TextIO

from omegaconf import DictConfig, OmegaConf

from vpo_lightning.config_errors import explain_config_error, is_config_error
from vpo_lightning.launch import die_with_parent

CONFIG_ERROR_STATUS = 2


def main() -> int:
    """Trains in the run folder given on the command line and returns the exit status."""
    if len(sys.argv) != 2:
        print("usage: python -m vpo_lightning.worker <run folder>", file=sys.stderr)
        return CONFIG_ERROR_STATUS
    folder = Path(sys.argv[1])
    die_with_parent()
    if int(os.environ.get("RANK", "0")) == 0:
        log = (folder / "log.txt").open("a", encoding="utf-8", buffering=1)
        sys.stdout, sys.stderr = _Tee(sys.stdout, log), _Tee(sys.stderr, log)
    cfg = OmegaConf.load(folder / "config.yaml")
    assert isinstance(cfg, DictConfig)
    _quieten()
    import torch

    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    from vpo_lightning.training import train

    status = 1
    try:
        summary = train(cfg, folder)
        _leave_group()
        status = 0 if summary["status"] == "finished" else 130
    except Exception as error:  # process boundary: everything else keeps its traceback
        if not is_config_error(error):
            raise
        print(f"error: {explain_config_error(error)}", file=sys.stderr)
        status = CONFIG_ERROR_STATUS
    finally:
        if "wandb" in sys.modules:
            sys.modules["wandb"].finish(exit_code=status)
    return status


def _leave_group() -> None:
    """Ends a job's process group of gloo; Lightning ends those of NCCL.

    A thread of gloo that lets go of its last tensor while Python shuts down aborts the process.
    """
    from torch import distributed

    if distributed.is_initialized() and distributed.get_backend() == "gloo":
        distributed.barrier()  # nobody leaves before all have come
        distributed.destroy_process_group()


def _quieten() -> None:
    """Leaves out what libraries print about settings that this program chose on purpose."""
    import logging

    import lightning.pytorch  # noqa: F401  (sets its loggers' levels when imported)
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*IterableDataset. has .__len__. defined.*",
        ".*in eval mode at the start of training.*",
        ".*does not have many workers.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*Detected call of .lr_scheduler.step.*",
        # What is logged is the same on every process, see VPOModule.
        ".*sync_dist=True.* when logging on epoch level.*",
    ):
        warnings.filterwarnings("ignore", message=message)


class _Tee:
    """A text stream that also writes to a log file."""

    def __init__(self, stream: TextIO, log: TextIO) -> None:
        self._stream = stream
        self._log = log

    def write(self, text: str) -> int:
        self._log.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()
        self._log.flush()

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


if __name__ == "__main__":
    sys.exit(main())
