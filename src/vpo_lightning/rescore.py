"""vpo-rescore: what every method would have made of the rollouts of a run. No model is loaded."""

from __future__ import annotations

import argparse
import html
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from vpo_lightning import build
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.heatmap import heatmap_svg

STORED = "as trained"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        report = _rescore(options)
    except (ConfigError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(_text_table(report))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        _write(options.out / "rescore.json", json.dumps(report, indent=1) + "\n")
        _write(options.out / "rescore.html", _page(report))
        print(f"written: {options.out}/rescore.html and rescore.json")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vpo-rescore",
        description="Scores the stored rollouts of a run again with every method: how far their "
        "advantages agree, how many groups have a signal, and how much the weights' draws move "
        "them. Methods that ask for one answer see the first of each chain.",
    )
    parser.add_argument("path", type=Path, help="run folder, rollouts folder or parquet file")
    parser.add_argument("--out", type=Path, help="folder for rescore.html and rescore.json")
    parser.add_argument("--methods", help="names of ablation files, with commas; default: all")
    parser.add_argument("--preset", default="matched", help="matched or official")
    parser.add_argument("--config-dir", type=Path, help="your own folder with ablation/*.yaml")
    parser.add_argument(
        "--weights", help="fixed weights, e.g. gold=1,diamond=2; default: the run's"
    )
    parser.add_argument("--resamples", type=int, default=4, help="weight draws for the variance")
    parser.add_argument("--seed", type=int, help="of the weights; default: the run's, else 0")
    return parser


def _rescore(options: argparse.Namespace) -> dict[str, Any]:
    from vpo_lightning.rollout.rescoring import (
        Settings,
        correlation,
        read_stored,
        rescore,
        sign_agreement,
    )

    stored = read_stored(options.path)
    run = _run_config(options.path)
    seed = options.seed if options.seed is not None else int(run.get("seed", 0))
    settings = Settings(seed, options.resamples, _weights(options.weights, run))
    known = build.ablation_files(options.config_dir)
    names = options.methods.split(",") if options.methods else sorted(known)
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--methods {unknown}: no such ablation; options: {sorted(known)}")
    surroundings = {"m": stored.num_answers, "trainer": {"max_steps": max(stored.steps) + 1}}
    columns = {STORED: stored.advantages}
    rows: list[dict[str, Any]] = []
    skipped: dict[str, str] = {}
    for name in names:
        method = build.read_method(known[name], options.preset, surroundings)
        try:
            result = rescore(method, stored, settings)
        except ValueError as error:  # not defined for these rollouts: said in the report
            skipped[name] = str(error)
            continue
        columns[name] = result.advantages
        rows.append(
            {
                "method": name,
                "groups_with_signal": result.signal_fraction,
                "mean_abs_advantage": float(result.advantages.abs().mean()),
                "weight_variance": result.weight_variance,
            }
        )
    matrices = {
        "correlation": correlation(list(columns.values())),
        "sign_agreement": sign_agreement(list(columns.values())),
    }
    for name, matrix in matrices.items():
        for i, row in enumerate(rows):
            row[f"{name}_with_trained"] = _number(float(matrix[0, i + 1]))
    return {
        "path": str(options.path),
        "preset": options.preset,
        "rollouts": stored.advantages.numel(),
        "groups": len(stored.steps),
        "seed": seed,
        "fixed_weights": dict(settings.weights),
        "methods": rows,
        "not_defined": skipped,
        "names": list(columns),
        **{key: [[_number(v) for v in row] for row in m.tolist()] for key, m in matrices.items()},
    }


def _run_config(path: Path) -> DictConfig:
    """The config of the run that the rollouts belong to; empty for a file of unknown origin."""
    folder = path.parent if path.is_file() else path
    for place in (folder, folder.parent):
        if (place / "config.yaml").exists():
            cfg = OmegaConf.load(place / "config.yaml")
            assert isinstance(cfg, DictConfig)
            return cfg
    return OmegaConf.create({})


def _weights(given: str | None, run: DictConfig) -> dict[str, float]:
    """Fixed weights by objective: given, else of the run's reward vector, else of its task."""
    if given is not None:
        try:
            pairs = [pair.split("=") for pair in given.split(",")]
            return {name: float(value) for name, value in pairs}
        except ValueError as error:
            raise ConfigError(
                f"--weights {given}: expected name=number with commas, e.g. gold=1,diamond=2"
            ) from error
    configured = OmegaConf.select(run, "reward_vector.weights")
    if configured is not None:
        return {str(name): float(value) for name, value in configured.items()}
    if "task" not in run:
        return {}
    return {o.name: float(o.weight) for o in build.build_task(run).objectives}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


_COLUMNS = {
    "groups_with_signal": "groups with signal",
    "mean_abs_advantage": "mean |A|",
    "weight_variance": "variance from weights",
    "correlation_with_trained": "correlation",
    "sign_agreement_with_trained": "equal sign",
}


def _text_table(report: dict[str, Any]) -> str:
    header = f"{'method':<24}" + "".join(f"{title:>23}" for title in _COLUMNS.values())
    lines = [_headline(report), header]
    for row in report["methods"]:
        lines.append(f"{row['method']:<24}" + "".join(f"{_cell(row[k]):>23}" for k in _COLUMNS))
    lines += [f"{name}: {why}" for name, why in report["not_defined"].items()]
    return "\n".join(lines)


def _headline(report: dict[str, Any]) -> str:
    return (
        f"{report['rollouts']} rollouts in {report['groups']} groups, preset {report['preset']}; "
        f"correlation and sign are those with the advantages {STORED}"
    )


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _page(report: dict[str, Any]) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("method", *_COLUMNS.values()))
    body = "".join(
        f"<tr><td>{html.escape(row['method'])}</td>"
        + "".join(f"<td>{_cell(row[key])}</td>" for key in _COLUMNS)
        + "</tr>\n"
        for row in report["methods"]
    )
    skipped = "".join(
        f"<p><b>{html.escape(name)}</b> is not defined here: {html.escape(why)}</p>"
        for name, why in report["not_defined"].items()
    )
    pictures = "".join(
        f"<h2>{title}</h2>{heatmap_svg(report['names'], _floats(report[key]), least)}"
        for key, title, least in (
            ("correlation", "Correlation of advantages", 0.0),
            ("sign_agreement", "Rollouts with advantages of equal sign, where neither is 0", 0.5),
        )
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>vpo-rescore</title>'
        "<style>body{font-family:sans-serif;margin:2em;max-width:70em}td,th{padding:.2em .8em;"
        "text-align:right}td:first-child,th:first-child{text-align:left}</style>"
        f"<h1>The same rollouts under every method</h1><p>{html.escape(_headline(report))}. "
        "Variance from weights: mean variance of an advantage over resampled weights, relative to "
        f"the variance of all advantages.</p><table><tr>{head}</tr>\n{body}</table>{skipped}"
        f"{pictures}</html>\n"
    )


def _floats(matrix: Sequence[Sequence[float | None]]) -> list[list[float]]:
    return [[math.nan if value is None else value for value in row] for row in matrix]


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
