"""vpo-train: trains one policy, or sweeps with -m, or resumes a run."""

from __future__ import annotations

import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from vpo_lightning import resume, rules
from vpo_lightning.engine_choice import choose_engine
from vpo_lightning.entry import run
from vpo_lightning.errors import ConfigError
from vpo_lightning.launch import launch, write_config
from vpo_lightning.run_folder import read_config, read_status


def main() -> None:
    """Entry point."""
    arguments = sys.argv[1:]
    if resume.is_asked_for(arguments):
        sys.exit(resume.main(arguments))
    sys.exit(run(job, "train"))


def job(cfg: DictConfig) -> int:
    """Checks the config, starts the worker, returns its exit status."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    cfg.name = str(cfg.name or HydraConfig.get().runtime.choices["ablation"])
    chosen = choose_engine(cfg)
    if chosen:
        print(chosen)
    if (folder / "config.yaml").exists():
        _refuse_other_run(cfg, folder)
        if finished(folder):
            print(f"{folder}: finished already, skipped")
            return 0
    rules.check(cfg)
    write_config(cfg, folder)
    if chosen:
        with (folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"{chosen}\n")
    print(f"run folder: {folder}", flush=True)
    return launch(cfg, folder)


def _refuse_other_run(cfg: DictConfig, folder: Path) -> None:
    """Only a job of a sweep that is run again may find its folder, and its own config in it."""
    if not cfg.skip_finished:
        raise ConfigError(
            f"hydra.run.dir={folder} holds a run already; choose another folder, or continue it by "
            f"vpo-train run={folder} resume=true"
        )
    wanted = OmegaConf.to_container(cfg, resolve=True)
    stored = OmegaConf.to_container(read_config(folder, f"hydra.sweep.dir={folder.parent}"))
    assert isinstance(wanted, dict)
    assert isinstance(stored, dict)
    changed = sorted(
        str(key)
        for key in {*wanted, *stored} - {"skip_finished"}
        if wanted.get(key) != stored.get(key)
    )
    if changed:
        raise ConfigError(
            f"{folder} holds a run with another config ({', '.join(changed)}); choose another "
            "hydra.sweep.dir"
        )


def finished(folder: Path) -> bool:
    """Whether the folder holds a run that trained and evaluated to the end."""
    return read_status(folder / "summary.json") == "finished"


if __name__ == "__main__":
    main()
