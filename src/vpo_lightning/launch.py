"""Starts the worker processes of a job and waits for them.

A job trains in fresh processes that get the resolved config through the run folder, never the
command line: Lightning's own launcher would start a sweep again in every child, and an engine's
memory would outlive its job.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from omegaconf import DictConfig, OmegaConf

from vpo_lightning.errors import ConfigError

_PR_SET_PDEATHSIG = 1


def write_config(cfg: DictConfig, folder: Path) -> None:
    """Writes the resolved config as ``config.yaml``, all or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "config.yaml.tmp"
    OmegaConf.save(cfg, temporary, resolve=True)
    os.replace(temporary, folder / "config.yaml")


def worker_command(cfg: DictConfig, folder: Path) -> list[str]:
    """The command that trains in `folder`: the worker itself, or torchrun for several processes.

    Raises:
        ConfigError: Several nodes, which have to be started on each of them.
    """
    worker = ["-m", "vpo_lightning.worker", str(folder)]
    if cfg.strategy.num_nodes > 1:
        raise ConfigError(
            f"strategy.num_nodes={cfg.strategy.num_nodes}: start every node with "
            f"`torchrun --nnodes {cfg.strategy.num_nodes} --nproc-per-node {cfg.strategy.devices} "
            f"... {' '.join(worker)}`, or with srun; the run folder {folder} is ready"
        )
    if cfg.strategy.devices == 1:
        return [sys.executable, *worker]
    processes = f"--nproc-per-node={cfg.strategy.devices}"
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", processes, *worker]


def die_with_parent() -> None:
    """Asks Linux to kill this process when the one that started it dies: nothing is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def launch(cfg: DictConfig, folder: Path) -> int:
    """Trains in `folder`, then reports; returns the exit status of the worker processes.

    SIGINT and SIGTERM are passed on: the worker stops at the next step boundary.
    """
    environment = dict(os.environ)
    if cfg.threads is not None:
        environment.update({k: str(cfg.threads) for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")})
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    process = subprocess.Popen(
        worker_command(cfg, folder),
        env=environment,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        process.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        status = process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if status == 0 and cfg.get("report_rollouts") is not None:
        report(folder, cfg.report_rollouts)
    return status if status >= 0 else 128 - status


def report(folder: Path, rollouts: int) -> None:
    """Writes ``report.html`` in a process of its own: if it fails, the run has not."""
    command = [sys.executable, "-m", "vpo_lightning.report", str(folder)]
    subprocess.run([*command, f"--rollouts={rollouts}"], check=False)
