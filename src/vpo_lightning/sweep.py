"""What happens when a sweep has ended: the comparison of its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from vpo_lightning.launch import report

SHOWN = {
    "best@1": "best@1",
    "best@3": "best@3",
    "best@10": "best@10",
    "best@30": "best@30",
    "expected_max@3": "E_w[max@3]",
    "expected_max@10": "E_w[max@10]",
    "expected_max@30": "E_w[max@30]",
    "deployed_expected_max": "set E_w",
    "deployed_cover": "set both",
    "diversity": "diversity",
    "nonzero_diversity": "diversity of completing",
    "nonzero_fraction": "completion",
    "cover": "cover",
}


class ComparisonTable(Callback):
    """Writes ``comparison.md`` into the sweep's folder and prints it.

    Args:
        baseline: Method that the others are paired with.
    """

    def __init__(self, baseline: str) -> None:
        self._baseline = baseline

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Compares the finished runs of the sweep."""
        del kwargs
        folder = Path(config.hydra.sweep.dir)
        text = compare_runs(folder, self._baseline)
        (folder / "comparison.md").write_text(text, encoding="utf-8")
        print(f"\n{text}\n{folder / 'comparison.md'}")


class SweepReport(Callback):
    """Writes ``report.html`` about all runs into the sweep's folder."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Reports what the jobs left behind, failed ones too."""
        del kwargs
        folder = Path(config.hydra.sweep.dir)
        if config.report_rollouts is not None and any(folder.rglob("config.yaml")):
            report(folder, config.report_rollouts)


def compare_runs(folder: Path, baseline: str) -> str:
    """The tables of all evaluated runs in the subfolders of a sweep, two for each temperature."""
    from vpo_lightning.build import build_pool_metrics
    from vpo_lightning.evaluation.comparison import EvaluatedRun, markdown_tables
    from vpo_lightning.evaluation.cost import cost_table
    from vpo_lightning.evaluation.results import find_evaluation

    runs = [path.parent for path in sorted(folder.rglob("summary.json")) if is_evaluated(path)]
    if not runs:
        return f"no finished run in {folder}\n"
    cfg = OmegaConf.load(runs[0] / "config.yaml")
    assert isinstance(cfg, DictConfig)
    metrics = build_pool_metrics(cfg)
    text = ""
    for temperature in cfg.evaluation.temperatures:
        loaded: list[EvaluatedRun] = []
        for i, run in enumerate(runs):
            about = json.loads((run / "summary.json").read_text())["run"]
            names = [about["name"]] if i else ["start, single", about["name"]]
            for name in names:
                found = find_evaluation(run, name, temperature, metrics)
                loaded.append(EvaluatedRun(name, about["seed"], found))
        figures = loaded[0].evaluation.figures
        first = next(iter(figures.values()))
        shown = {key: title for key, title in SHOWN.items() if key in first}
        text += f"### Temperature {temperature}, {len(figures)} held-out prompts\n\n"
        text += markdown_tables(loaded, baseline, shown) + "\n"
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    costs = cost_table(summaries)
    return f"{text}### Cost of training\n\n{costs}" if costs else text


def is_evaluated(summary: Path) -> bool:
    """Whether a run's summary holds an evaluation."""
    return "evaluation" in json.loads(summary.read_text(encoding="utf-8"))
