"""Where the figures of a run go: its own files, and the loggers of the config."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from vpo_lightning.errors import ConfigError


def build_loggers(cfg: DictConfig, folder: Path) -> list[Any]:
    """The run folder's own metric files, and what the config adds."""
    from vpo_lightning.lightning.loggers import FileLogger

    loggers: list[Any] = [FileLogger(folder)]
    for name, settings in (cfg.logger or {}).items():
        if name == "wandb":
            loggers.append(_wandb_logger(settings, cfg, folder))
        else:
            loggers.append(instantiate(settings))
    return loggers


def _wandb_logger(settings: DictConfig, cfg: DictConfig, folder: Path) -> Any:
    """One W&B run for the run folder (also when it is resumed), one group for a sweep."""
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "logger=wandb needs the package wandb: pip install 'vpo-lightning[wandb]'"
        ) from error
    logger = instantiate(
        settings,
        name=folder.name,
        id=_run_id(folder),
        resume="allow",
        group=settings.group or folder.parent.name,
        save_dir=str(folder),
    )
    logger.log_hyperparams(OmegaConf.to_container(cfg, resolve=True))
    return logger


def _run_id(folder: Path) -> str:
    """A short stable name for a run folder."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]
