"""The frame around every Hydra entry point: exit statuses, and errors as one readable line.

Hydra prints a config error over several lines, with its own search path, and ends with status 1.
Here whatever a user can mend is ONE line on standard error that names the key and its options, and
the status is 2. Every other exception keeps its traceback and ends with status 1.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vpo_lightning.config_errors import (
    explain_config_error,
    is_config_error,
    refuse_other_types,
)
from vpo_lightning.errors import ConfigError

CONFIG_PATH = "pkg://vpo_lightning.conf"
CONFIG_ERROR_STATUS = 2

Job = Callable[[DictConfig], int | None]


class JobFailed(Exception):
    """A job of a sweep that has reported its own failure; only its exit status travels.

    The exception itself may be unpicklable, and would then break a launcher that runs jobs in
    other processes.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def run(job: Job, config_name: str, argv: Sequence[str] | None = None) -> int:
    """The exit status of a Hydra application: 0, what the job returned, or 2 for a config error.

    Composes `config_name` of `vpo_lightning.conf` with the command line by `hydra.main`, so
    ``--help``, ``--cfg job``, ``--config-dir`` and ``--multirun`` work. A failing job does not stop
    the other jobs of a sweep.

    Args:
        job: Gets the composed config; returns None or an exit status. It is a function of an
            importable module, so that launchers can send it to other processes.
        config_name: A primary config, without ``.yaml``.
        argv: The command line without the program's name; by default that of this process.

    Raises:
        Exception: Whatever the job raises that is not a config error; and with HYDRA_FULL_ERROR=1
            in the environment, config errors too.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR", "0") == "1"
    outcome: list[int | Exception] = []
    try:
        with _hydra_surroundings(arguments):
            hydra.main(config_path=CONFIG_PATH, config_name=config_name, version_base="1.3")(
                _reporting(job, outcome)
            )()
        for result in outcome:
            if isinstance(result, Exception):
                raise result
    except JobFailed as failed:
        return failed.status
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        # A ValueError is Hydra's answer to contradicting flags as long as no job has begun.
        is_flag_error = type(error) is ValueError and not outcome
        if wants_traceback or not (is_config_error(error) or is_flag_error):
            raise
        print(explain_config_error(error, config_name, arguments), file=sys.stderr)
        return CONFIG_ERROR_STATUS
    return next((status for status in outcome if isinstance(status, int) and status), 0)


def reported(command: Callable[[], int], arguments: Sequence[str]) -> int:
    """The exit status of a command without Hydra; what a user can mend is one line and status 2.

    Args:
        command: Returns its exit status.
        arguments: The command line, which may name the folder that cannot be used.
    """
    try:
        return command()
    except Exception as error:  # process boundary: everything else keeps its traceback
        if not is_config_error(error) or os.environ.get("HYDRA_FULL_ERROR", "0") == "1":
            raise
        print(f"error: {explain_config_error(error, arguments=arguments)}", file=sys.stderr)
        return CONFIG_ERROR_STATUS


def _reporting(job: Job, outcome: list[int | Exception]) -> Callable[[DictConfig], None]:
    """The job as Hydra calls it; in a single run its outcome goes to `outcome`.

    The exception of a single run is kept instead of raised, because Hydra adds lines to it.
    """

    @functools.wraps(job)
    def reporting_job(cfg: DictConfig) -> None:
        is_sweep = HydraConfig.get().mode == RunMode.MULTIRUN
        try:
            _refuse_missing_values(cfg)
            refuse_other_types(cfg)
            status = job(cfg) or 0
        except Exception as error:  # process boundary: a sweep goes on, and only a status travels
            _remove_if_empty(Path(HydraConfig.get().runtime.output_dir))
            if not is_sweep:
                outcome.append(error)
                return
            raise JobFailed(_report(error)) from None
        outcome.append(status)
        if is_sweep and status:
            raise JobFailed(status)

    return reporting_job


def _remove_if_empty(folder: Path) -> None:
    """Removes the folder that Hydra made for a job that never began, and its empty parents."""
    here = Path.cwd()
    for place in (folder, *folder.parents[:2]):
        if place in (here, *here.parents) or not place.is_dir() or any(place.iterdir()):
            return
        place.rmdir()


def _report(error: Exception) -> int:
    """Prints the failure of one job of a sweep and returns its exit status."""
    overrides = " ".join(HydraConfig.get().overrides.task)
    if not is_config_error(error):
        print(f"the job {overrides!r} failed:", file=sys.stderr)
        traceback.print_exception(error)
        return 1
    print(f"the job {overrides!r}: {explain_config_error(error)}", file=sys.stderr)
    return CONFIG_ERROR_STATUS


def _refuse_missing_values(cfg: DictConfig) -> None:
    missing: Any = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        example = " ".join(f"{key}=..." for key in missing)
        raise ConfigError(f"{', '.join(missing)}: a value is needed; add {example}")


@contextmanager
def _hydra_surroundings(arguments: list[str]) -> Iterator[None]:
    """Hydra reads the command line from sys.argv, and raises instead of printing on request."""
    argv, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *arguments]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        sys.argv = argv
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
