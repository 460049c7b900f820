"""What the rollout browser and the comparison on one prompt show, small enough to be embedded."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from vpo_lightning.evaluation.report.curves import rounded
from vpo_lightning.evaluation.report.folders import Run, first_line
from vpo_lightning.evaluation.report.stored import StoredRollout, sample_groups, spread

MOST_BYTES = 3_000_000  # of all samples, compressed and encoded: the page stays below 5 MiB
MOST_PROMPTS = 12  # compared side by side
_MOST_CHARACTERS = 20_000  # of one text


@runtime_checkable
class Pictures(Protocol):
    """What the runs' tasks add: pictures of answers, and the held-out prompts of pools."""

    def picture(self, run: Run, row: Mapping[str, Any], answers: list[Any]) -> list[Any] | None:
        """The task's picture of a chain as nested lists, or None.

        Args:
            run: The run.
            row: prompt_id, prompt, ground_truth and objectives.
            answers: ``{"text", "rewards"}`` by slot.
        """
        ...

    def held_out(self, run: Run, prompt_id: str) -> Mapping[str, Any] | None:
        """The row of a held-out prompt, or None where the task cannot be built."""
        ...


def sampled_rollouts(run: Run, most: int, pictures: Pictures) -> list[dict[str, Any]]:
    """Whole groups of rollouts for the browser, at most `most` rollouts of a run."""
    return [_group(run, group, pictures) for group in sample_groups(run, most)]


def _group(run: Run, group: list[StoredRollout], pictures: Pictures) -> dict[str, Any]:
    first = group[0]
    row = {
        "prompt_id": first.prompt_id,
        "prompt": first.prompt,
        "ground_truth": first.ground_truth,
        "objectives": first.objectives,
    }
    return {
        "step": first.step + 1,
        "id": first.prompt_id,
        "prompt": _cut(first.prompt),
        "objectives": first.objectives,
        "rollouts": [
            {
                "text": _cut(rollout.text),
                "answers": [_answer(answer) for answer in rollout.answers],
                "reward": rounded(rollout.set_reward),
                "advantage": rounded(rollout.advantage),
                "end": rollout.finish_reason,
                "tokens": rollout.tokens,
                "picture": pictures.picture(run, row, rollout.answers),
            }
            for rollout in group
        ],
    }


def _answer(answer: Mapping[str, Any]) -> dict[str, Any]:
    share = answer.get("win_share")
    return {
        "text": None if answer["text"] is None else _cut(answer["text"]),
        "rewards": [rounded(reward) for reward in answer["rewards"]],
        "parsed": answer.get("is_parsed", True),
        "copy": answer.get("is_duplicate", False),
        "share": None if share is None else rounded(share),
    }


def _cut(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}\n[… {len(text) - _MOST_CHARACTERS} more characters]"


def compared_prompts(
    run: Run, pool_file: Path, deployed: int, pictures: Pictures
) -> list[dict[str, Any]]:
    """Some held-out prompts with all reward vectors of the run's pool, and its first answers.

    Args:
        run: The run.
        pool_file: Pools of the trained policy.
        deployed: Answers shown in full: one chain, or that many single answers.
        pictures: Draws them.
    """
    try:
        records = pq.read_table(pool_file).slice(0, MOST_PROMPTS).to_pylist()
    except (OSError, pa.ArrowException) as error:
        run.note(f"{pool_file.name} could not be read ({first_line(error)})")
        return []
    return [_compared(run, record, deployed, pictures) for record in records]


def _compared(
    run: Run, record: Mapping[str, Any], deployed: int, pictures: Pictures
) -> dict[str, Any]:
    rewards = [answer for chain in record["rewards"] for answer in chain]
    texts = [text for chain in record["texts"] for text in chain]
    count = max(len(record["rewards"][0]), min(deployed, len(rewards)))
    shown = [{"text": texts[i], "rewards": rewards[i]} for i in range(count)]
    row = pictures.held_out(run, record["prompt_id"])
    return {
        "id": record["prompt_id"],
        "objectives": record["objectives"],
        "prompt": _cut(str(row["prompt"])) if row else None,
        "rewards": [[rounded(value) for value in answer] for answer in rewards],
        "answers": [_answer(answer) for answer in shown],
        "picture": pictures.picture(run, row, shown) if row else None,
    }


def compared_groups(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Training prompts in the place of held-out ones, for runs without an evaluation."""
    return [
        {
            "id": f"{group['id']}, step {group['step']}",
            "objectives": group["objectives"],
            "prompt": group["prompt"],
            "rewards": [a["rewards"] for r in group["rollouts"] for a in r["answers"]],
            "answers": group["rollouts"][0]["answers"],
            "picture": group["rollouts"][0]["picture"],
        }
        for group in spread(groups, MOST_PROMPTS)
    ]


def embedded(samples: dict[str, Any], most: int = MOST_BYTES) -> tuple[str, dict[str, int]]:
    """The samples as base64 of gzipped JSON of at most `most` bytes, and the rollouts in it by run.

    Above that size every run loses half of its groups until it fits, and then of its compared
    prompts.

    Args:
        samples: ``rollouts`` (groups by run label) and ``compared`` (prompts by run label).
        most: Bytes.
    """
    text = _packed(samples)
    while len(text) > most and _thin(samples):
        text = _packed(samples)
    counts = {
        label: sum(len(group["rollouts"]) for group in own)
        for label, own in samples["rollouts"].items()
    }
    return text, counts


def _thin(samples: dict[str, Any]) -> bool:
    """Takes half of the rollouts' groups away, or of the compared prompts once there are none."""
    for kind in ("rollouts", "compared"):
        if any(samples[kind].values()):
            samples[kind] = {
                label: spread(own, len(own) // 2) for label, own in samples[kind].items()
            }
            return True
    return False


def _packed(samples: Mapping[str, Any]) -> str:
    text = json.dumps(samples, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, 6, mtime=0)).decode("ascii")
