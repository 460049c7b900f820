"""vpo-rescore: what every method would have made of the rollouts of a run. No model is loaded."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from vpo_lightning import build, methods
from vpo_lightning.entry import reported
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.files import write_json, write_text
from vpo_lightning.evaluation.rescore_page import STORED, page, text_table
from vpo_lightning.run_folder import read_config
from vpo_lightning.scoring import RewardVector

if TYPE_CHECKING:
    from torch import Tensor

    from vpo_lightning.rollout.rescoring import Rescored, Settings


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    options = _parser().parse_args(arguments)
    return reported(lambda: _report(options), arguments)


def _report(options: argparse.Namespace) -> int:
    _check(options)
    report = _rescore(options)
    print(text_table(report))
    if options.out is not None:
        write_json(report, options.out / "rescore.json")
        write_text(page(report), options.out / "rescore.html")
        print(f"written: {options.out}/rescore.html and rescore.json")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vpo-rescore",
        description="Scores the stored rollouts of a run again with every method: how far their "
        "advantages agree, how many groups have a signal, and how much the weights' draws move "
        "them. Methods that ask for one answer see every answer of a chain as a rollout.",
    )
    parser.add_argument("path", type=Path, help="run folder, rollouts folder or parquet file")
    parser.add_argument("--out", type=Path, help="folder for rescore.html and rescore.json")
    parser.add_argument("--methods", help="names of ablation files, with commas; default: all")
    parser.add_argument("--preset", help="matched or official; default: the run's, else matched")
    parser.add_argument("--config-dir", type=Path, help="your own folder with ablation/*.yaml")
    parser.add_argument(
        "--weights",
        help="fixed weights, e.g. gold=1,diamond=2, others 0; default: the run's",
    )
    parser.add_argument("--resamples", type=int, default=4, help="weight draws for the variance")
    parser.add_argument("--seed", type=int, help="of the weights; default: the run's, else 0")
    return parser


def _check(options: argparse.Namespace) -> None:
    if options.resamples < 2:
        raise ConfigError(f"--resamples {options.resamples}: a variance needs at least 2")
    if options.seed is not None and options.seed < 0:
        raise ConfigError(f"--seed {options.seed}: it must be at least 0")
    folder = options.config_dir
    if folder is not None and not (folder / "ablation").is_dir():
        raise ConfigError(f"--config-dir {folder}: expected a folder with ablation/*.yaml")


def _rescore(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from vpo_lightning.rollout.rescoring import rescore
    from vpo_lightning.rollout.stored import read_stored

    torch.set_num_threads(1)  # thousands of small tensors: threads only wait for each other
    run = _run_config(options.path)
    vector = _reward_vector(options.weights, run)
    stored = read_stored(options.path).seen_through(vector, _importance(run))
    preset = options.preset or OmegaConf.select(run, "preset.name", default="matched")
    known = methods.ablation_files(options.config_dir)
    names = options.methods.split(",") if options.methods else sorted(known)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--methods {unknown}: no such ablation; options: {sorted(known)}")
    steps = OmegaConf.select(run, "trainer.max_steps", default=max(stored.steps) + 1)
    surroundings = {"m": stored.num_answers, "trainer": {"max_steps": steps}}
    settings = _settings(options, run)
    found: dict[str, Rescored] = {}
    skipped: dict[str, str] = {}
    for name in names:
        method = methods.read_method(known[name], preset, surroundings)
        try:
            found[name] = rescore(method, stored, settings)
        except ValueError as error:  # not defined for these rollouts: said in the report
            skipped[name] = str(error)
    return {
        "path": str(options.path),
        "preset": preset,
        "rollouts": stored.advantages.numel(),
        "groups": len(stored.steps),
        "group_size": stored.advantages.shape[1],
        "num_answers": stored.num_answers,
        "seed": settings.seed,
        "rewards": _in_words(vector),
        "fixed_weights": {o.name: o.weight for group in stored.objectives for o in group},
        "not_defined": skipped,
        **_figures(stored.advantages, found),
    }


def _figures(trained: Tensor, found: Mapping[str, Rescored]) -> dict[str, Any]:
    """A row for each method, and the two matrices over the stored advantages and all methods."""
    from vpo_lightning.rollout.rescoring import correlation, sign_agreement

    columns = [trained, *(result.advantages for result in found.values())]
    matrices = {"correlation": correlation(columns), "sign_agreement": sign_agreement(columns)}
    rows: list[dict[str, Any]] = []
    for i, (name, result) in enumerate(found.items(), start=1):
        what = "answers" if result.num_answers == 1 else f"chains of {result.num_answers}"
        row = {
            "method": name,
            "compared": f"{result.group_size} {what}",
            "groups_with_signal": result.signal_fraction,
            "mean_abs_advantage": result.mean_abs_advantage,
            "standard_error": _number(result.standard_error),
            "weight_variance": result.weight_variance,
        }
        with_trained = {f"{k}_with_trained": _number(float(m[0, i])) for k, m in matrices.items()}
        rows.append(row | with_trained)
    return {
        "methods": rows,
        "names": [STORED, *found],
        **{key: [[_number(v) for v in row] for row in m.tolist()] for key, m in matrices.items()},
    }


def _settings(options: argparse.Namespace, run: DictConfig) -> Settings:
    from vpo_lightning.rollout.rescoring import Settings

    return Settings(
        seed=options.seed if options.seed is not None else int(run.get("seed", 0)),
        resamples=options.resamples,
        max_tokens=OmegaConf.select(run, "rollout.sampling.max_tokens", default=0),
        soft_overlong_tokens=OmegaConf.select(run, "rollout.soft_overlong_tokens", default=0),
    )


def _run_config(path: Path) -> DictConfig:
    """The config of the run that the rollouts belong to; empty for a file of unknown origin."""
    folder = path.parent if path.is_file() else path
    for place in (folder, folder.parent):
        if (place / "config.yaml").exists():
            return read_config(place, str(path))
    return OmegaConf.create({})


def _reward_vector(given: str | None, run: DictConfig) -> RewardVector:
    """The run's own reward vector, with other fixed weights on request."""
    vector = build.build_reward_vector(run) if "reward_vector" in run else RewardVector()
    if given is None:
        return vector
    try:
        pairs = [pair.split("=") for pair in given.split(",")]
        weights = {name: float(value) for name, value in pairs}
        if not all(math.isfinite(weight) for weight in weights.values()):
            raise ValueError(given)
        return replace(vector, weights=weights)
    except ValueError as error:
        raise ConfigError(
            f"--weights {given}: expected name=number with commas, e.g. gold=1,diamond=2"
        ) from error


def _importance(run: DictConfig) -> dict[str, float]:
    """Weight by objective name in the task's scalar reward; empty for a file of unknown origin."""
    if "task" not in run:
        return {}
    return {o.name: float(o.weight) for o in build.build_task(run).objectives}


def _in_words(vector: RewardVector) -> str:
    """What of the stored rewards the methods see."""
    kept = "all objectives" if vector.objectives is None else ", ".join(vector.objectives)
    parts = [kept if not vector.collapse else f"the weighted mean of {kept}"]
    parts += [f"{name} x {factor:g}" for name, factor in (vector.scale or {}).items()]
    parts += [f"0 where {name} < {least:g}" for name, least in (vector.floor or {}).items()]
    return "; ".join(parts)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


if __name__ == "__main__":
    sys.exit(main())
