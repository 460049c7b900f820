"""Every yaml under conf/ composes, and every `_target_` exists and takes its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

CONF = Path(__file__).parents[2] / "conf"
PRIMARY = sorted(path.stem for path in CONF.glob("*.yaml"))
GROUPS = sorted(
    (path.parent.relative_to(CONF).as_posix(), path.stem) for path in CONF.glob("*/**/*.yaml")
)
# What a user has to fill in: these are written ??? in the yaml.
MANDATORY = {
    ("reward_vector", "subset"): ["reward_vector.objectives=[gold]"],
    ("engine", "replay"): ["engine.path=elsewhere/rollouts"],
    ("task", "ultrafeedback_online"): ["task.judge.model=judge"],
    ("model", "pretrained"): ["model.path=elsewhere"],
}
# Groups that another primary config than train.yaml composes.
PRIMARY_OF = {"search": "search", "thresholds": "diagnose"}
ELSEWHERE = {"search": ["policy=elsewhere"], "score": ["task=maze", "input=-", "output=-"]}
TASKS = [option for group, option in GROUPS if group == "task"]
EVALUATIONS = [option for group, option in GROUPS if group == "evaluation"]


def composed(primary: str, *overrides: str) -> DictConfig:
    with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
        return compose(primary, list(overrides))


def targets(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every node with a `_target_`, the inner ones too."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from targets(value, f"{path}.{key}" if path else str(key))
    if isinstance(node, list):
        for i, value in enumerate(node):
            yield from targets(value, f"{path}[{i}]")


def check(cfg: DictConfig) -> None:
    resolved = OmegaConf.to_container(cfg, resolve=True)
    for path, node in targets(resolved):
        target = get_object(node["_target_"])
        arguments = {key: value for key, value in node.items() if not key.startswith("_")}
        signature = inspect.signature(target)
        try:
            if node.get("_partial_"):
                signature.bind_partial(**arguments)
            else:
                signature.bind(**arguments)
        except TypeError as error:
            pytest.fail(f"{path}: {node['_target_']}: {error}")


@pytest.mark.parametrize("primary", PRIMARY)
def test_every_primary_config_composes_and_binds(primary: str) -> None:
    check(composed(primary, *ELSEWHERE.get(primary, [])))


@pytest.mark.parametrize(("group", "option"), GROUPS, ids=lambda value: str(value))
def test_every_group_option_composes_and_binds(group: str, option: str) -> None:
    overrides = [f"{group}={option}", *MANDATORY.get((group, option), [])]
    primary = PRIMARY_OF.get(group, "train")
    check(composed(primary, *overrides, *ELSEWHERE.get(primary, [])))


@pytest.mark.parametrize("path", sorted(CONF.glob("**/*.yaml")), ids=lambda path: path.stem)
def test_every_yaml_says_what_it_is_and_stays_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = lines[1] if lines[0].startswith("# @package") else lines[0]
    assert comment.startswith("# ")
    limit = 60 if path.parent == CONF else 25
    assert len(lines) <= limit, f"{len(lines)} lines"


def outer_targets(node: Any) -> Iterator[dict[str, Any]]:
    """Every node with a `_target_` that is not inside another one."""
    if isinstance(node, dict) and "_target_" in node:
        yield node
    elif isinstance(node, dict | list):
        for value in node.values() if isinstance(node, dict) else node:
            yield from outer_targets(value)


@pytest.mark.parametrize(("group", "option"), GROUPS, ids=lambda value: str(value))
def test_every_group_option_can_be_instantiated(group: str, option: str) -> None:
    # Classes import no weights, data or servers when they are made; wandb is an extra.
    primary = PRIMARY_OF.get(group, "train")
    needed = [*MANDATORY.get((group, option), []), *ELSEWHERE.get(primary, [])]
    cfg = composed(primary, f"{group}={option}", *needed)
    resolved = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(resolved, dict)
    for node in outer_targets(resolved.get(group, resolved)):
        if not node["_target_"].startswith("lightning.pytorch.loggers"):
            assert instantiate(node) is not None


@pytest.mark.parametrize(
    ("group", "node"),
    [*((name, "task") for name in TASKS), *((name, "evaluation.metrics") for name in EVALUATIONS)],
)
def test_every_setting_can_be_set_without_a_plus(group: str, node: str) -> None:
    # Hydra takes only keys that the yaml has, and errors name keys to set.
    option = f"{node.split('.')[0]}={group}"
    settings = OmegaConf.select(
        composed("train", option, *MANDATORY.get(("task", group), [])), node
    )
    target = get_object(settings["_target_"])
    assert {field.name for field in fields(target) if field.init} <= set(settings)
