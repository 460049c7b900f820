"""Which policy ``run=`` and ``policy=`` of vpo-eval mean, and its weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from vpo_lightning import build
from vpo_lightning.deployed import check_model
from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.model_folder import check_model_folder
from vpo_lightning.run_folder import read_config

if TYPE_CHECKING:
    from vpo_lightning.rollout.engine import RolloutEngine

OWN_KEYS = ("run", "policy", "name", "output", "sample", "compare", "device")


def merged_with_run(cfg: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The config of the run with what the command line says in its place.

    Args:
        cfg: As composed for vpo-eval.
        overrides: The command line's, ``key=value`` or ``group=option``.

    Raises:
        ConfigError: `run` is no run folder.
    """
    merged = read_config(Path(str(cfg.run)).expanduser(), f"run={cfg.run}")
    keys = [override.partition("=")[0].lstrip("+~").partition("@")[0] for override in overrides]
    for key in (*OWN_KEYS, *keys):
        if not key.startswith("hydra"):
            value = OmegaConf.select(cfg, key)
            if key == "name" and value is None:
                continue
            OmegaConf.update(merged, key, value, merge=False, force_add=True)
    return merged


def run_of_checkpoint(policy: str) -> Path:
    """The run folder that a checkpoint lies in.

    Raises:
        ConfigError: There is none.
    """
    path = Path(policy).expanduser()
    if not path.is_file():
        raise ConfigError(f"policy={policy}: there is no such checkpoint")
    folder = path.resolve().parent.parent
    if not (folder / "config.yaml").is_file():
        raise ConfigError(
            f"policy={policy}: a checkpoint is read with the config of its run; expected it in "
            "<run folder>/checkpoints/, or give run=<run folder>"
        )
    return folder


def policy_place(cfg: DictConfig) -> str:
    """The model folder, Hub id or checkpoint to evaluate; "" for the start policy of the config.

    Raises:
        ConfigError: It is not there.
    """
    if cfg.policy is not None:
        if not is_checkpoint(str(cfg.policy)):
            check_model(str(cfg.policy))
        return str(cfg.policy)
    if cfg.run is None:
        return ""
    folder = Path(str(cfg.run)).expanduser()
    best = folder / "checkpoints" / "best.ckpt"
    if cfg.evaluation.checkpoint == "best" and best.exists():
        return str(best)
    if not (folder / "policy" / "config.json").is_file():
        raise ConfigError(
            f"run={cfg.run}: it has no policy/ yet; give policy=<run>/checkpoints/last.ckpt, or "
            f"finish it by vpo-train run={cfg.run} resume=true"
        )
    check_model_folder(folder / "policy", f"run={cfg.run}/policy")
    return str(folder / "policy")


def is_checkpoint(policy: str) -> bool:
    """Whether a policy is named by a checkpoint."""
    return policy.endswith(".ckpt")


def load_policy(cfg: DictConfig, place: str) -> tuple[RolloutEngine, Any, str]:
    """The engine with the policy's weights, its encoder, and the place of the weights.

    Args:
        cfg: The config.
        place: As `policy_place` gives it.
    """
    import torch

    base = place if place and not is_checkpoint(place) else build.start_policy(cfg)
    device = str(cfg.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device={device}: it cannot be used ({reason}); set cpu") from error
    engine = build.build_engine(cfg, base, device)
    if is_checkpoint(place):
        engine.load_weights(_checkpoint_weights(cfg, base, place).items(), version=0)
    return engine, build.build_encoder(_describing(cfg, place), base), place or base


def _describing(cfg: DictConfig, place: str) -> DictConfig:
    """The config; for a model folder of its own not with the `model` of another one."""
    if not place or is_checkpoint(place) or cfg.get("run") is not None:
        return cfg
    described = cfg.copy()
    with open_dict(described):
        described.model.path = place
    return described


def _checkpoint_weights(cfg: DictConfig, base: str, place: str) -> dict[str, Any]:
    """The full weights of a checkpoint, which may hold adapters alone."""
    from vpo_lightning.policy.start import load_start_policy
    from vpo_lightning.policy.weights import full_weights, load_full_weights, read_checkpoint

    state = read_checkpoint(place)["state_dict"]
    policy = load_start_policy(base, build.build_model_source(cfg), cfg.seed)
    load_full_weights(policy, {key.removeprefix("policy."): v for key, v in state.items()})
    return dict(full_weights(policy))
