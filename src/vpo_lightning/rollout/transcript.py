"""Rollouts as a page that a person reads: what was asked, written, scored, and why."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from vpo_lightning.rollout.batch import RolloutBatch, RolloutGroup
from vpo_lightning.rollout.store import win_shares
from vpo_lightning.scoring import ScoredAnswer

_ROLLOUTS = 2  # of the first prompt
_MOST = 4000  # characters of a prompt or completion


def write_transcript(batch: RolloutBatch, folder: Path, rank: int = 0) -> Path:
    """Writes the first prompt's first rollouts as ``step_<step>_rank_<rank>.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{batch.step:06d}_rank_{rank}.md"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(transcript(batch), encoding="utf-8", errors="replace")
    os.replace(temporary, path)
    return path


def transcript(batch: RolloutBatch, rollouts: int = _ROLLOUTS) -> str:
    """The first prompt of a batch and its first `rollouts` rollouts, as Markdown.

    Every answer has its reward for each objective by name, what became of it (``ok``,
    ``duplicate``, ``unparsed``, ``missing``, ``failed``), the share of weight draws under which it
    is the best of its chain, and the task's explanation. All rollouts are in the parquet file.
    """
    group = batch.groups[0]
    parts = [f"# Step {batch.step}, prompt {group.row.id}", _fenced(group.row.prompt)]
    for sample in range(min(rollouts, len(group.completions))):
        parts += _rollout(group, sample)
    return "\n\n".join(parts) + "\n"


def _rollout(group: RolloutGroup, sample: int) -> Iterator[str]:
    completion, shares = group.completions[sample], win_shares(group, sample)
    yield f"## Rollout {sample}"
    yield _fenced(completion.text)
    yield (
        f"Set reward {float(group.set_rewards[sample]):.4f}, advantage "
        f"{float(group.advantages[sample]):+.4f}; {len(completion.ids)} tokens, ended by "
        f"{completion.finish_reason}."
    )
    names = [objective.name for objective in group.row.objectives]
    lines = ["| answer | " + " | ".join(names) + " | best | |", "|---" * (len(names) + 3) + "|"]
    for answer, share in zip(group.scored[sample].answers, shares, strict=True):
        rewards = " | ".join(f"{reward:.3g}" for reward in answer.rewards)
        best = "" if share is None else f"{share:.0%}"
        lines.append(f"| {answer.slot + 1} | {rewards} | {best} | {_told(answer)} |")
    yield "\n".join(lines)


def _told(answer: ScoredAnswer) -> str:
    """What became of an answer, and why, as the cell of a table."""
    if answer.text is None:
        return "missing"
    if answer.error is not None:
        state, reason = "failed", answer.error
    else:
        state = "unparsed" if not answer.is_parsed else "ok"
        state, reason = "duplicate" if answer.is_duplicate else state, answer.explanation
    return f"{state}: {reason}".removesuffix(": ").replace("|", "\\|")


def _fenced(text: str) -> str:
    """The text as a block of code, with more backticks than it holds itself."""
    runs = re.findall("`+", text)
    fence = "`" * max(3, *(len(run) + 1 for run in runs), 3)
    shown = text if len(text) <= _MOST else f"{text[:_MOST]}\n... ({len(text)} characters)"
    return f"{fence}text\n{shown}\n{fence}"
