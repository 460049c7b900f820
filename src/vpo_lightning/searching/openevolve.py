"""OpenEvolve as it is, with our policy as its model and our scorer as its evaluator.

OpenEvolve runs in a process of its own (`openevolve_child`). It asks the policy through an
OpenAI-compatible endpoint on the loopback interface and has every program scored there too, so that
all calls are accounted in one place, its evaluator has our deadline, and what it has been told
before an interruption it is told again.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from vpo_lightning.errors import ConfigError
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.search import Search

if TYPE_CHECKING:
    from vpo_lightning.searching.loop import PromptSearch, SearchLoop

_POLL_SECONDS = 0.05
_STOP_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class OpenEvolve(Search):
    """The package openevolve: islands, MAP-Elites, a model that rewrites programs.

    A program starts it: ``start_program`` of the row's ground truth, or `start`. The reward vector
    becomes the metrics, by objective, with ``combined_score`` for its scalar; objectives are the
    dimensions of the MAP-Elites grid.

    Attributes:
        iterations: At most; the budget may end the run earlier.
        start: Program for rows that bring none.
        islands: Populations.
        features: Objectives that span the grid; None takes all.
        feature_bins: Cells of the grid along each.
        diff: Ask for changes of the parent instead of a whole program.
        stall_seconds: The run is ended when OpenEvolve has asked nothing for so long.

    Raises:
        ConfigError: A setting out of its range, or the package is missing.
    """

    iterations: int = 10
    start: str | None = None
    islands: int = 2
    features: Sequence[str] | None = None
    feature_bins: int = 5
    diff: bool = False
    stall_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Checks the settings."""
        for name in ("iterations", "islands", "feature_bins", "stall_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"search.{name}={getattr(self, name)}: it must be positive")

    @override
    def check(self, problem: Problem) -> None:
        super().check(problem)
        for package in ("openevolve", "starlette", "uvicorn"):
            if importlib.util.find_spec(package) is None:
                raise ConfigError(
                    f"search=openevolve needs the package {package}: pip install "
                    "'vpo-lightning[openevolve]'"
                )
        self.start_program(problem)
        names = [objective.name for objective in problem.row.objectives]
        unknown = [name for name in self.features or () if name not in names]
        if unknown:
            raise ConfigError(f"search.features={unknown}: no such objective; there are {names}")
        problem.policy.num_tokens([{"role": "user", "content": "Improve this program."}])

    def start_program(self, problem: Problem) -> str:
        """The program that evolution starts from.

        Raises:
            ConfigError: Neither the row nor the search has one.
        """
        program = problem.row.ground_truth.get("start_program", self.start)
        if not isinstance(program, str) or not program.strip():
            raise ConfigError(
                f"search.start: {problem.row.id} brings no program to start from; set search.start "
                "to the text of one"
            )
        return program

    @override
    def run(
        self, loop: SearchLoop, problems: Sequence[Problem], folder: Path
    ) -> tuple[list[PromptSearch], bool]:
        from vpo_lightning.searching.evolution_desk import EvolutionDesk

        for problem in problems:
            loop.solved.check(problem.row)
            self.check(problem)
        recorded = list(loop.log.recorded())
        desks = [
            EvolutionDesk(self, loop, problem, [e for e in recorded if e["id"] == problem.row.id])
            for problem in problems
        ]
        is_complete = True
        for number, desk in enumerate(desks):
            if loop.is_stopping():
                is_complete = False
                break
            is_complete &= self._evolve(
                loop, desk, folder / "openevolve" / desk.row.id.replace("/", "_")
            )
            loop.report(number, len(desks) - number - 1)
        return [desk.search for desk in desks], is_complete

    def _evolve(self, loop: SearchLoop, desk: Any, folder: Path) -> bool:
        """Runs OpenEvolve on one problem; whether it came to its end and was not interrupted."""
        from vpo_lightning.serving.loopback import LoopbackServer

        with LoopbackServer(desk.app()) as server:
            process = self._start(server.url, desk, folder)
            try:
                is_interrupted = self._watch(process, loop, desk)
            finally:
                _end_group(process)
        desk.close()
        if desk.error is not None:
            raise desk.error
        if not (folder / "programs.json").exists() and not (is_interrupted or desk.is_spent):
            text = (folder / "log.txt").read_text(errors="replace").strip().splitlines()
            reason = text[-1] if text else f"exit status {process.returncode}"
            desk.search.failures["stalled" if desk.is_stalled else "ended_early"] += 1
            print(f"{desk.row.id}: OpenEvolve ended early ({reason})", file=sys.stderr)
        return not is_interrupted

    def _start(self, url: str, desk: Any, folder: Path) -> subprocess.Popen[bytes]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "start.py").write_text(self.start_program(desk.problem), encoding="utf-8")
        (folder / "programs.json").unlink(missing_ok=True)
        names = [objective.name for objective in desk.row.objectives]
        settings = {
            **{k: v for k, v in asdict(self).items() if k not in ("start", "weights")},
            "features": list(self.features) if self.features is not None else names,
            "url": url,
            "seed": desk.seed,
            "question": desk.row.prompt,
            "max_tokens": desk.problem.policy.max_tokens,
        }
        (folder / "settings.json").write_text(json.dumps(settings, indent=1))
        environment = {
            **os.environ,
            "PYTHONHASHSEED": "0",  # OpenEvolve iterates over sets of ids
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        command = [sys.executable, "-m", "vpo_lightning.searching.openevolve_child", str(folder)]
        with (folder / "log.txt").open("wb") as log:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _watch(self, process: subprocess.Popen[bytes], loop: SearchLoop, desk: Any) -> bool:
        """Waits for the end, or makes one; whether the user wanted it."""
        while process.poll() is None:
            if loop.is_stopping():
                return True
            desk.is_stalled = desk.idle_seconds > self.stall_seconds
            if desk.is_spent or desk.is_stalled or desk.error is not None:
                return False
            time.sleep(_POLL_SECONDS)
        return False


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and all that it started: asks first, then kills."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
