"""``vpo-train run=<folder> resume=true``: continues a run with the config it was started with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from vpo_lightning import rules
from vpo_lightning.entry import reported
from vpo_lightning.errors import ConfigError
from vpo_lightning.launch import launch, write_config
from vpo_lightning.run_folder import read_config

_ALLOWED = ("trainer.max_steps=", "logger.")


def is_asked_for(arguments: Sequence[str]) -> bool:
    """Whether the command line resumes a run."""
    return any(a.startswith(("resume=", "run=")) for a in arguments)


def main(arguments: Sequence[str]) -> int:
    """Continues a run and returns the exit status; config errors are one line and status 2."""
    return reported(lambda: _resume(arguments), arguments)


def _resume(arguments: Sequence[str]) -> int:
    folder, overrides = _parse(arguments)
    cfg = read_config(folder, f"run={folder}")
    before = cfg.trainer.max_steps
    for override in overrides:
        try:
            cfg.merge_with_dotlist([override])
        except yaml.YAMLError as error:
            raise ConfigError(f"{override}: cannot be read; expected key=value") from error
    rules.check_ranges(cfg)
    from vpo_lightning.train import finished

    if finished(folder) and cfg.trainer.max_steps <= before:
        print(f"{folder}: the run is finished ({before} steps); nothing to do")
        return 0
    if cfg.trainer.max_steps < before:
        _refuse_fewer_steps(folder, cfg.trainer.max_steps)
    rules.check(cfg)
    write_config(cfg, folder)
    return launch(cfg, folder)


def _refuse_fewer_steps(folder: Path, steps: int) -> None:
    from vpo_lightning.lightning.loggers import read_metrics

    if not (folder / "metrics.jsonl").exists():
        return
    made = max((record["step"] for record in read_metrics(folder)), default=0)
    if steps < made:
        raise ConfigError(
            f"trainer.max_steps={steps}: the run has made {made} steps; choose at least as many"
        )


def _parse(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    values = {}
    overrides = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in ("run", "resume"):
            values[key] = value
        elif argument.startswith(_ALLOWED):
            overrides.append(argument)
        else:
            raise ConfigError(
                f"{argument}: a resumed run keeps its config; only trainer.max_steps and logger.* "
                "may change"
            )
    if values.get("resume", "").lower() != "true" or not values.get("run"):
        raise ConfigError("to continue a run give both: run=<folder> resume=true")
    return Path(values["run"]).expanduser(), overrides
