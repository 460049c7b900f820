"""vpo-search: puts a policy inside a search and measures quality against cost."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from vpo_lightning import build, rules
from vpo_lightning.deployed import Deployed, find_policy, load_codec, load_engine, prompt_style
from vpo_lightning.entry import run
from vpo_lightning.errors import ConfigError
from vpo_lightning.launch import write_config
from vpo_lightning.prompting import PromptStyle
from vpo_lightning.run_folder import read_config, read_status
from vpo_lightning.searching.budget import Budget
from vpo_lightning.task import PromptRow, Task, first_rows

_INTERRUPTED_STATUS = 130


def main() -> None:
    """Entry point."""
    sys.exit(run(job, "search"))


def job(cfg: DictConfig) -> int:
    """Runs one search and returns the exit status: 0, or 130 if it was asked to stop."""
    rules.check_ranges(cfg)
    deployed = find_policy(cfg.policy)
    kind = HydraConfig.get().runtime.choices["search"]
    cfg.name = str(cfg.name or kind)
    task = _task(cfg, deployed)
    task.check()
    rows = _rows(cfg, task)
    style = prompt_style(deployed, cfg.m)
    budget = Budget.of(OmegaConf.to_container(cfg.budget, resolve=True))  # type: ignore[arg-type]
    folder = _folder(cfg, deployed)
    if not _claim(cfg, folder):
        print(f"{folder}: finished already")
        return 0
    description = {
        "name": cfg.name,
        "search": kind,
        "policy": str(cfg.policy),
        "policy_name": deployed.label,
        "split": cfg.split,
        "seed": cfg.seed,
        "budget": asdict(budget),
    }
    finished = _search(cfg, folder, deployed, (task, rows, style), budget, description)
    print(f"results: {folder}", flush=True)
    return 0 if finished else _INTERRUPTED_STATUS


def _search(
    cfg: DictConfig,
    folder: Path,
    deployed: Deployed,
    question: tuple[Task, list[PromptRow], PromptStyle],
    budget: Budget,
    description: dict[str, Any],
) -> bool:
    """Loads the policy, searches, writes archive and result; whether it came to its end."""
    from vpo_lightning.searching.archive import Archive
    from vpo_lightning.searching.events import EventLog
    from vpo_lightning.searching.files import write_archive, write_result
    from vpo_lightning.searching.loop import SearchLoop
    from vpo_lightning.searching.problem import Problem
    from vpo_lightning.searching.scores import AnswerScorer

    task, rows, style = question
    search, solved = build.build_search(cfg.search), build.build_search(cfg.solved)
    for row in rows:  # before the policy is loaded
        solved.check(row)
        search.guide.check(row)
    policy = _policy(cfg, deployed)
    log = EventLog(folder / "events.jsonl")
    problems = [Problem(task, row, style, policy, cfg.seed, Archive()) for row in rows]
    with AnswerScorer(task, build.build_judges(cfg, task)) as scorer, _stop_on_signal() as stop:
        loop = SearchLoop(
            search, policy, scorer, budget, solved, log, lambda: bool(stop), _print_progress
        )
        try:
            searches, finished = search.run(loop, problems, folder)
        finally:
            log.close()
            policy.close()
    write_archive(searches, folder / "archive.jsonl")
    status = "finished" if finished else "stopped"
    result = write_result(searches, folder / "result.json", {**description, "status": status})
    print(summary(result))
    return finished


def _policy(cfg: DictConfig, deployed: Deployed) -> Any:
    from vpo_lightning.rollout.engine import SamplingSettings
    from vpo_lightning.searching.endpoint import Endpoint, EndpointPolicy
    from vpo_lightning.searching.policies import LocalPolicy

    longest = cfg.sampling.max_tokens or deployed.from_run("rollout.sampling.max_tokens", 512)
    sampling = SamplingSettings(longest, float(cfg.sampling.temperature), float(cfg.sampling.top_p))
    if deployed.is_endpoint:
        endpoint = Endpoint(deployed.place, **_plain(cfg.endpoint, without="concurrency"))
        return EndpointPolicy(endpoint, sampling, cfg.endpoint.concurrency)
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    codec = load_codec(deployed)
    engine = load_engine(deployed, cfg.engine, cfg.dtype)
    return LocalPolicy(engine, codec.encode, codec.encode_text, codec.decode, sampling)


def _task(cfg: DictConfig, deployed: Deployed) -> Task:
    if "task" in cfg:
        return build.build_task(cfg)
    if deployed.cfg is None:
        raise ConfigError(f"policy={cfg.policy}: it is no run, so name a task: task=...")
    with open_dict(cfg):
        cfg.task = deployed.cfg.task
    return build.build_task(cfg)


def _rows(cfg: DictConfig, task: Task) -> list[PromptRow]:
    if not isinstance(cfg.prompts, int) or cfg.prompts < 1:
        raise ConfigError(f"prompts={cfg.prompts}: expected a whole number of at least 1")
    return first_rows(task.rows(cfg.split), cfg.prompts)


def _folder(cfg: DictConfig, deployed: Deployed) -> Path:
    if cfg.out is not None:
        return Path(cfg.out).expanduser()
    return (deployed.run or Path("outputs")) / "search" / cfg.name


def _claim(cfg: DictConfig, folder: Path) -> bool:
    """Makes the folder, or finds an interrupted search in it; False: it has finished already."""
    cfg.out = str(folder)
    wanted = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(wanted, dict)
    events = folder / "events.jsonl"
    if not (events.exists() and events.stat().st_size):
        write_config(cfg, folder)
        return True
    if not cfg.resume:
        raise ConfigError(
            f"{folder} holds a search already; continue it with resume=true, or choose another "
            "name or out"
        )
    stored = OmegaConf.to_container(read_config(folder, f"out={folder}"))
    assert isinstance(stored, dict)
    changed = sorted(
        str(key)
        for key in {*wanted, *stored} - {"resume", "threads"}
        if wanted.get(key) != stored.get(key)
    )
    if changed:
        raise ConfigError(
            f"{folder} holds a search with another config ({', '.join(changed)}); choose another "
            "name or out"
        )
    return read_status(folder / "result.json") != "finished"


def _plain(node: DictConfig, without: str) -> dict[str, Any]:
    return {str(k): v for k, v in node.items() if k != without}


@contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """A list that is empty until SIGINT or SIGTERM asks to stop; a second one interrupts."""
    seen: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in numbers}

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        if seen:
            raise KeyboardInterrupt
        print("stopping after this round; continue with resume=true", file=sys.stderr, flush=True)
        seen.append(number)

    for number in numbers:
        signal.signal(number, note)
    try:
        yield seen
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _print_progress(number: int, active: int) -> None:
    print(f"round {number + 1}: {active} prompts go on", flush=True)


def summary(result: dict[str, Any]) -> str:
    """The figures of a search, for the terminal."""
    from vpo_lightning.searching.curves import interval

    prompts, spent = result["prompts"], result["spent"]
    lines = [f"{result['search']} with {result['policy_name']}, {len(prompts)} prompts"]
    for figure in result["figures"]:
        band = interval([float(prompt[figure]) for prompt in prompts])
        lines.append(f"  {figure:12s} {band['mean']:.3f}  [{band['low']:.3f}, {band['high']:.3f}]")
    costs = ", ".join(f"{name.replace('_', ' ')} {value:.6g}" for name, value in spent.items())
    lines.append(f"  spent: {costs}")
    wrong = {kind: count for kind, count in result["failures"].items() if count}
    if wrong:
        lines.append("  " + ", ".join(f"{kind}: {count}" for kind, count in wrong.items()))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
