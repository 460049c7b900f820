"""What a run's report shows, as tables and charts of Weights & Biases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, WandbLogger

from vpo_lightning.evaluation.report.evaluations import evaluated, figure_table, k_curves
from vpo_lightning.evaluation.report.folders import Run, read_run
from vpo_lightning.evaluation.report.stored import sample_groups
from vpo_lightning.evaluation.report.witness import witness_map

ROLLOUTS = 64


def log_media(loggers: Sequence[Logger], folder: Path) -> None:
    """Logs sampled rollouts, held-out figures, best of k and win shares to W&B, if it is used.

    Args:
        loggers: Of the trainer; others than `WandbLogger` get nothing here.
        folder: The run folder, written to the end.
    """
    used = [logger for logger in loggers if isinstance(logger, WandbLogger)]
    if not used:
        return
    run = read_run(folder)
    run.label = run.method
    media = _media(run)
    for logger in used:
        logger.experiment.log(media)


def _media(run: Run) -> dict[str, Any]:
    import wandb

    make_table: Any = wandb.Table  # its columns and rows are typed as invariant lists
    columns, rows = _rollout_table(run)
    media: dict[str, Any] = {"rollouts/sample": make_table(columns=columns, data=rows)}
    entries = evaluated([run])
    for setting in dict.fromkeys(entry.setting for entry in entries):
        keys, figures = figure_table(entries, setting)
        means = [[row[0], *(cell and cell[0] for cell in row[1:])] for row in figures]
        media[f"eval/figures/{setting}"] = make_table(columns=["policy", *keys], data=means)
    for chart in k_curves(entries):
        title = f"{chart['title']} in {chart['unit']}, {chart['setting']}"
        media[f"eval/{chart['family']}_by_{chart['unit']}/{chart['setting']}"] = (
            wandb.plot.line_series(
                [series["x"] for series in chart["series"].values()],
                [series["y"] for series in chart["series"].values()],
                keys=list(chart["series"]),
                title=title,
                xname=chart["unit"],
            )
        )
    if witness := witness_map(run):
        media["slots/win_share"] = wandb.plot.line_series(
            witness["steps"],
            [list(shares) for shares in zip(*witness["shares"], strict=True)],
            keys=[f"answer {row['slot']}" for row in witness["slots"]],
            title="Share of weights that each answer of a chain wins",
            xname="step",
        )
    return media


def _rollout_table(run: Run) -> tuple[list[str], list[list[Any]]]:
    """One row for each answer of the sampled rollouts."""
    columns = ["step", "prompt", "rollout", "answer", "text", "rewards", "wins", "copy"]
    rows = [
        [
            rollout.step + 1,
            rollout.prompt_id,
            rollout.sample + 1,
            answer["slot"] + 1,
            answer["text"] or "",
            ", ".join(
                f"{name} {value:.3g}"
                for name, value in zip(rollout.objectives, answer["rewards"], strict=True)
            ),
            answer["win_share"],
            answer["is_duplicate"],
            rollout.set_reward,
            rollout.advantage,
        ]
        for group in sample_groups(run, ROLLOUTS)
        for rollout in group
        for answer in rollout.answers
    ]
    return [*columns, "set reward", "advantage"], rows
