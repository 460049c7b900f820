"""What engine=auto stands for here, and what vLLM needs; decided before torch is imported."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.vllm_server_settings import VLLMServerSettings
from vpo_lightning.rollout.vllm_settings import (
    VLLMSettings,
    check_model,
    installed_build,
    required_build,
)


def choose_engine(cfg: DictConfig, device: str = "") -> str | None:
    """Puts the engine that ``engine=auto`` stands for into `cfg`; says which and why.

    Args:
        cfg: Changed in place.
        device: Where the policy is put, if that is decided already; else the strategy says.

    Returns:
        One line for the log; None where the config already names an engine.

    Raises:
        ConfigError: Both builds of vLLM are installed.
    """
    if "with_gpu" not in cfg.engine:
        return None
    name, reason = cfg.engine.with_gpu, "NVIDIA GPU found, vLLM installed"
    place = device or OmegaConf.select(cfg, "strategy.accelerator")
    if place == "cpu" or not has_nvidia_gpu():
        name, reason = cfg.engine.otherwise, "no NVIDIA GPU to use"
    elif installed_build() != "vllm":
        name, reason = cfg.engine.otherwise, "vLLM for GPUs is not installed"
    path = Path(str(resources.files("vpo_lightning.conf"))) / "engine" / f"{name}.yaml"
    cfg.engine = OmegaConf.load(path)
    return f"engine=auto: {name} ({reason})"


def check_engine(cfg: DictConfig) -> None:
    """Refuses vLLM where it is not installed as it must be, or cannot run the model.

    Raises:
        ConfigError: Names the key to change, or what to install.
    """
    target = str(cfg.engine.get("_target_", ""))
    if not target.endswith((".VLLMEngine", ".VLLMServerEngine")):
        return
    plain: Any = OmegaConf.to_container(cfg.engine, resolve=True)
    fields = {k: v for k, v in plain.items() if not k.startswith("_")}
    check_model(cfg.model.dtype)
    if target.endswith(".VLLMServerEngine"):
        _check_transfer(VLLMServerSettings(**fields))
        return
    settings = VLLMSettings(**fields)
    required_build()
    if cfg.strategy.devices % settings.tensor_parallel_size:
        raise ConfigError(
            f"engine.tensor_parallel_size={settings.tensor_parallel_size}: it must divide the "
            f"processes of a node, strategy.devices={cfg.strategy.devices}"
        )


def _check_transfer(settings: VLLMServerSettings) -> None:
    if settings.transfer == "nccl" and installed_build() != "vllm":
        raise ConfigError(
            "engine.transfer=nccl: the training process sends the weights with vLLM, which is not "
            "installed for GPUs here; pip install 'vpo-lightning[vllm]', or set "
            "engine.transfer=files"
        )


def has_nvidia_gpu() -> bool:
    """Whether this process sees at least one NVIDIA GPU."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(Path("/dev").glob("nvidia[0-9]*"))
