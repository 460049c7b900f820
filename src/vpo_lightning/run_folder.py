"""The files that a run leaves for later commands, read by all of them in one way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vpo_lightning.errors import ConfigError


def read_config(folder: Path, given: str) -> DictConfig:
    """The config that a run, or a search, was started with.

    Args:
        folder: Of the run.
        given: How the command line names the folder, for errors.

    Raises:
        ConfigError: There is no ``config.yaml``, or it is none.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{given}: no config.yaml there; give the folder of a started run")
    try:
        cfg = OmegaConf.load(path)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(
            f"{given}: {path} cannot be read ({_line(error)}); expected what vpo-train wrote"
        ) from error
    if not isinstance(cfg, DictConfig) or not cfg:
        raise ConfigError(
            f"{given}: {path} holds no keys; expected the config that vpo-train wrote"
        )
    return cfg


def read_status(path: Path) -> str:
    """The ``status`` in a ``summary.json`` or ``result.json``; "" where there is no such file.

    Raises:
        ConfigError: It is no JSON object with a status.
    """
    if not path.exists():
        return ""
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        return str(found["status"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path}: no JSON object with a status ({_line(error)}); remove it to go on from the "
            "last checkpoint"
        ) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
