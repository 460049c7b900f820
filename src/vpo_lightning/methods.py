"""From an ablation to the method that it stands for: in a run, or read by itself."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from vpo_lightning.errors import ConfigError
from vpo_lightning.scoring import RewardVector

if TYPE_CHECKING:
    from vpo_lightning.rollout.credit import Method


def build_method(slots: DictConfig, reward_vector: RewardVector) -> Method:
    """The four slots of an ablation, and the reward vector they see."""
    from vpo_lightning.rollout.credit import Method

    return Method(
        prompt=instantiate(slots.prompt),
        weights=instantiate(slots.weights) if slots.weights else None,
        set_reward=instantiate(slots.set_reward),
        advantage=instantiate(slots.advantage),
        reward_vector=reward_vector,
        redraw_weights=slots.get("redraw_weights", True),
        normalize_weights=slots.get("normalize_weights", True),
    )


def ablation_files(own: Path | None = None) -> dict[str, Path]:
    """The ablation yamls by name: those of the package, and those of a user's config folder."""
    shipped = Path(str(resources.files("vpo_lightning.conf")))
    folders = [shipped, *([] if own is None else [own])]
    return {p.stem: p for folder in folders for p in (folder / "ablation").glob("*.yaml")}


def read_method(ablation: Path, preset: str, surroundings: Mapping[str, Any]) -> Method:
    """The method of an ablation yaml, outside of a run.

    Args:
        ablation: The yaml.
        preset: Name of the preset that it refers to.
        surroundings: Values of the other keys that ablations refer to (`m`, `trainer`).

    Raises:
        ConfigError: There is no such preset.
    """
    presets = Path(str(resources.files("vpo_lightning.conf"))) / "preset"
    if not (presets / f"{preset}.yaml").exists():
        options = ", ".join(sorted(path.stem for path in presets.glob("*.yaml")))
        raise ConfigError(f"preset={preset}: no such choice; options: {options}")
    cfg = OmegaConf.create(
        {
            **surroundings,
            "ablation": OmegaConf.load(ablation),
            "preset": OmegaConf.load(presets / f"{preset}.yaml"),
        }
    )
    return build_method(cfg.ablation, RewardVector())
