"""The rules of the group `evaluation`, checked before torch is imported."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from vpo_lightning.errors import ConfigError
from vpo_lightning.method_rules import is_number
from vpo_lightning.task import Task


def check_evaluation(cfg: DictConfig, task: Task, num_objectives: set[int]) -> None:
    """Refuses figures and weights that an evaluation could not compute or ask for.

    Args:
        cfg: A config with the group `evaluation`.
        task: Declares the objectives.
        num_objectives: The different numbers of objectives that the method sees.

    Raises:
        ConfigError: Names the key to change.
    """
    if cfg.evaluation.num_answers % cfg.m and "m" in cfg.ablation.prompt:
        raise ConfigError(
            f"evaluation.num_answers={cfg.evaluation.num_answers} is not a whole number of chains "
            f"of m={cfg.m} answers; set it to a multiple of m"
        )
    metrics = cfg.evaluation.metrics
    if cfg.evaluation.num_prompts:
        names = [objective.name for objective in task.rows("test")[0].objectives]
        _check_names(metrics, names)
    for key, values in (
        ("ks", metrics.get("ks", [])),
        ("token_budgets", metrics.get("token_budgets", [])),
        ("grid_size", [metrics.get("grid_size", 1)]),
    ):
        if not all(isinstance(value, int) and value >= 1 for value in values):
            raise ConfigError(f"evaluation.metrics.{key}={values}: whole numbers from 1 expected")
    seeds = cfg.evaluation.get("seeds", [0])
    plain = list(seeds) if OmegaConf.is_list(seeds) or isinstance(seeds, list) else []
    if not plain or len(set(plain)) < len(plain) or not all(isinstance(s, int) for s in plain):
        raise ConfigError(
            f"evaluation.seeds={seeds}: expected different whole numbers, e.g. [1000]"
        )
    _check_stated_weights(cfg, num_objectives)


def _check_names(metrics: DictConfig, names: list[str]) -> None:
    scores = metrics.get("weights") or {}
    settings = {"cover": metrics.get("cover"), "solved": metrics.get("solved")}
    settings |= {f"weights.{name}": weights for name, weights in scores.items()}
    for key, wanted in settings.items():
        unknown = sorted(set(wanted or {}) - set(names))
        if unknown:
            raise ConfigError(
                f"evaluation.metrics.{key}={unknown}: no such objective; the task has {names} (use "
                "evaluation=default)"
            )
    for name, weights in scores.items():
        if not weights or not all(is_number(w) and w >= 0 for w in weights.values()):
            raise ConfigError(
                f"evaluation.metrics.weights.{name}={weights}: expected a weight by objective, not "
                "negative"
            )


def _check_stated_weights(cfg: DictConfig, num_objectives: set[int]) -> None:
    given = cfg.evaluation.get("weights", "fixed")
    vectors = OmegaConf.to_container(given) if OmegaConf.is_list(given) else given
    if vectors in ("fixed", "grid"):
        return
    counts = " or ".join(str(count) for count in sorted(num_objectives))
    expected = (
        f"it must be fixed, grid, or a list of at most evaluation.num_answers="
        f"{cfg.evaluation.num_answers} vectors of {counts} weights, one for each objective, not "
        "negative and not all 0"
    )
    if not isinstance(vectors, list) or not 1 <= len(vectors) <= cfg.evaluation.num_answers:
        raise ConfigError(f"evaluation.weights={vectors}: {expected}")
    for vector in vectors:
        is_vector = isinstance(vector, list) and {len(vector)} == num_objectives
        if not is_vector or not all(is_number(v) and v >= 0 for v in vector) or sum(vector) <= 0:
            raise ConfigError(f"evaluation.weights={vectors}: {vector} is wrong; {expected}")
