"""ToolRL: call the right tools with the right arguments (Qian et al., arXiv:2504.13958)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Any

from vpo_lightning.parsing import AnswerFormat, NumberedTags
from vpo_lightning.task import Objective, PromptRow, Task
from vpo_lightning.tasks.chat_rows import read_chat_row
from vpo_lightning.tasks.fields import Fields
from vpo_lightning.tasks.loading import LazyRows, Source, load_rows
from vpo_lightning.tasks.settings import check_settings
from vpo_lightning.tasks.text import quoted
from vpo_lightning.tasks.toolrl.calls import ToolCall, parse_tool_answer, read_calls
from vpo_lightning.tasks.toolrl.demonstrations import demonstration
from vpo_lightning.tasks.toolrl.rewards import reward_vector

OBJECTIVES = (
    Objective("format", "keeping the output format"),
    Objective("tool_name", "calling the right tools, and no others"),
    Objective("arg_key", "giving every call the right arguments, and no others"),
    Objective("arg_value", "giving the arguments the right values"),
)

_SOURCES = ("rlla", "tool")  # the published data set, and the reference implementation's copy of it


@dataclass(frozen=True)
class ToolFormat(NumberedTags):
    """Answers in the output format of the system message, which is not shown a second time.

    Attributes:
        prefill: Text that the chat template puts before a completion. It counts as part of a single
            answer; in a chain it lies before the first numbered tag and so in no answer.
    """

    tag: str = "response"
    example: str = "an answer in the output format of the system message"
    prefill: str = ""

    def parse_single(self, text: str) -> str | None:
        """The prefill and the completion; a blank completion stays blank, and so unparsed."""
        return self.prefill + text if text.strip() else text

    def ask_single(self) -> str:
        """The sentence in a prompt that asks for one answer."""
        return "Answer in the output format of the system message."

    def ask_multiple(self, m: int) -> str:
        """The sentence in a prompt that asks for m different answers."""
        return (
            f"Give {m} different answers, each of which could be the best one under other "
            f"priorities. Each is complete, in the output format of the system message, and stands "
            f"in a numbered tag of its own: the first between <{self.tag}_1> and </{self.tag}_1>, "
            f"the last between <{self.tag}_{m}> and </{self.tag}_{m}>."
        )


@dataclass(kw_only=True, eq=False)
class ToolrlTask(Task):
    """Tool calls in a dialogue; K = 4.

    An answer is parsed if it is not blank. (A blank single answer to a question without calls
    scores zero here; the public reference implementation gives it (0, 1, 1, 1) in training and zero
    in evaluation.)

    Args:
        train_path: File of training rows: prompt (system message with the tools and the output
            format, user message with the dialogue), reward_model.ground_truth (the gold answer).
        test_path: File of test rows.
        hub_id: Data set of the Hugging Face hub with such rows and the splits train and test.
        prefill: What the model's chat template puts before its answer, for instance an empty think
            block; scored as part of the answer, in training and in evaluation.

    Raises:
        ConfigError: Settings that cannot work.
    """

    train_path: str | None = None
    test_path: str | None = None
    hub_id: str | None = None
    prefill: str = ""

    objectives = OBJECTIVES
    may_block = False

    def __post_init__(self) -> None:
        """Checks the settings."""
        check_settings(self)
        folder = Path(__file__).parent / "data"
        self._source = Source(folder, self.train_path, self.test_path, self.hub_id)
        self._loaded: dict[str, LazyRows[int]] = {}

    @cached_property
    def answer_format(self) -> AnswerFormat:  # type: ignore[override]
        """The output format of the system message, after the prefill."""
        return ToolFormat(prefill=self.prefill)

    def rows(self, split: str) -> Sequence[PromptRow]:
        """The dialogues of a split."""
        if split not in self._loaded:
            self._loaded[split] = load_rows(
                self._source.records(split),
                lambda record, number: self._row(record, f"{split}-{number}"),
            )
        return self._loaded[split]

    def score(self, answer: str, row: PromptRow) -> list[float]:
        """Format, tool_name, arg_key and arg_value of one answer."""
        gold = _gold_calls(row.ground_truth["tool_calls_json"])
        return reward_vector(parse_tool_answer(answer), gold)

    def vote(self, answer: str) -> str | None:
        """The calls, whatever the thought says, with their arguments in one order."""
        calls = [[call.name, call.arguments] for call in parse_tool_answer(answer).calls]
        try:
            return json.dumps(calls, sort_keys=True) if answer.strip() else None
        except RecursionError:  # nested more deeply than can be written
            return None

    def explain(self, answer: str, row: PromptRow) -> str:
        """The calls that could be read, and those that were wanted."""
        found, gold = parse_tool_answer(answer), _gold_calls(row.ground_truth["tool_calls_json"])
        calls = _listed(found.calls)
        if not found.calls and found.has_call_text:
            calls = "nothing that can be read"
        think = "" if found.has_think else "no think block; "
        return f"{think}called {calls}; wanted {_listed(gold)}"

    def demonstrate(self, row: PromptRow, rng: Random) -> str:
        """An imperfect answer, see `demonstrations`."""
        return demonstration(_gold_calls(row.ground_truth["tool_calls_json"]), rng)

    def row_from_ground_truth(self, row_id: str, ground_truth: Mapping[str, Any]) -> PromptRow:
        """A row without a question, from tool_calls_json (text) or tool_calls (a list)."""
        truth = _ground_truth(Fields(ground_truth, row_id, "ground_truth"))
        return PromptRow(row_id, "", truth, OBJECTIVES)

    def row_from_record(self, row_id: str, record: Mapping[str, Any]) -> PromptRow:
        """The row of one record."""
        return self._row(Fields(record, row_id), row_id)

    def check(self) -> None:
        """Reads the files."""
        self._source.check(self)

    def _row(self, record: Fields, row_id: str) -> PromptRow:
        row = read_chat_row(record, _SOURCES)
        if row.system is None:
            raise record.error("prompt", "has no system message; expected one that lists the tools")
        if isinstance(row.ground_truth, str):
            truth = _parsed_gold(row.ground_truth)
        else:
            truth = _ground_truth(row.truth_fields(record))
        return PromptRow(row_id, row.user, truth, OBJECTIVES, row.system)


def _parsed_gold(answer: str) -> dict[str, Any]:
    """The ground truth in a gold answer."""
    calls = parse_tool_answer(answer).calls
    values = [{"name": call.name, "parameters": call.arguments} for call in calls]
    return {"tool_calls_json": json.dumps(values)}


def _listed(calls: Sequence[ToolCall]) -> str:
    written = (f"{call.name}({_arguments(call)})" for call in calls)
    return ", ".join(written) or "no tool"


def _arguments(call: ToolCall) -> str:
    return ", ".join(f"{name}={quoted(value)}" for name, value in call.arguments.items())


def _ground_truth(fields: Fields) -> dict[str, Any]:
    if fields.has("tool_calls"):
        calls = [dict(call.values) for call in fields.objects("tool_calls")]
        return {"tool_calls_json": json.dumps(calls)}
    text = fields.text("tool_calls_json")
    try:
        _gold_calls(text)
    except (ValueError, RecursionError) as error:
        raise fields.error("tool_calls_json", f"is no JSON list of calls ({error})") from error
    return {"tool_calls_json": text}


@lru_cache(maxsize=4096)
def _gold_calls(text: str) -> tuple[ToolCall, ...]:
    values = json.loads(text)
    if not isinstance(values, list):
        raise ValueError(f"it is a {type(values).__name__}")
    return tuple(read_calls(values))
