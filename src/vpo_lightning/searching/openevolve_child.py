"""The process of OpenEvolve: ``python -m vpo_lightning.searching.openevolve_child <folder>``.

It reads ``settings.json`` of the folder and writes ``programs.json``: OpenEvolve's database.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

from vpo_lightning.evaluation.files import write_json
from vpo_lightning.searching import openevolve_evaluator

_PR_SET_PDEATHSIG = 1
_SCORE_SECONDS = 3600  # the scorer has its own deadline, which is shorter


def main() -> int:
    """Runs OpenEvolve in the folder given on the command line; the exit status."""
    folder = Path(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Its workers have to inherit what is set here.
    multiprocessing.set_start_method("fork")
    settings = json.loads((folder / "settings.json").read_text())
    _name_programs(settings["seed"])
    from openevolve.controller import EvolutionFailedError, OpenEvolve

    run = OpenEvolve(
        str(folder / "start.py"),
        openevolve_evaluator.__file__,
        _config(settings),
        output_dir=str(folder / "output"),
    )
    try:
        asyncio.run(run.run(iterations=settings["iterations"]))
    except EvolutionFailedError as error:
        print(error)  # no call led to a program; all of them are accounted
    _write_programs(run.database.programs.values(), folder / "programs.json")
    return 0


def _name_programs(seed: int) -> None:
    """Makes OpenEvolve's ids follow from the seed; everybody else still gets random ones.

    It names programs by ``uuid.uuid4``, in its main process and in its one worker.
    """
    main_process, numbers, random_id = os.getpid(), itertools.count(), uuid.uuid4

    def next_id() -> uuid.UUID:
        if not sys._getframe(1).f_globals["__name__"].startswith("openevolve"):
            return random_id()
        role = "main" if os.getpid() == main_process else "worker"
        rng = random.Random(f"{seed}:{role}:{next(numbers)}")
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    uuid.uuid4 = next_id


def _config(settings: dict[str, Any]) -> Any:
    from openevolve.config import Config

    return Config.from_dict(
        {
            "max_iterations": settings["iterations"],
            "random_seed": settings["seed"],
            "log_level": "WARNING",
            "language": "python",
            "diff_based_evolution": settings["diff"],
            "llm": {
                "primary_model": "policy",
                "api_base": f"{settings['url']}/v1",
                "api_key": "none",
                "max_tokens": settings["max_tokens"],
                "timeout": _SCORE_SECONDS,
                "retries": 0,
            },
            "prompt": {
                "system_message": settings["question"],
                "use_template_stochasticity": False,
            },
            "database": {
                "num_islands": settings["islands"],
                "random_seed": settings["seed"],
                "feature_dimensions": settings["features"],
                "feature_bins": settings["feature_bins"],
            },
            "evaluator": {
                "timeout": _SCORE_SECONDS,
                "max_retries": 0,
                "cascade_evaluation": False,
                "parallel_evaluations": 1,  # more would make the order a matter of chance
                "evaluator_args": {"url": settings["url"]},
            },
        }
    )


def _write_programs(programs: Any, path: Path) -> None:
    records = [
        {
            "id": program.id,
            "parent_id": program.parent_id,
            "iteration": program.iteration_found,
            "generation": program.generation,
            "island": program.metadata.get("island"),
            "metrics": program.metrics,
            "code": program.code,
        }
        for program in programs
    ]
    records.sort(key=lambda record: (record["iteration"], record["id"]))
    write_json(records, path)


if __name__ == "__main__":
    sys.exit(main())
