"""The reward vector of an answer with tool calls: format, names, argument keys, argument values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vpo_lightning.tasks.text import multiset_f1, normalize_text, set_f1, word_f1
from vpo_lightning.tasks.toolrl.calls import ToolAnswer, ToolCall

_SAME_NAME = 100  # an equal name outweighs any number of shared keys
_EQUAL = 1e-9

Pair = tuple[ToolCall, ToolCall] | None


def reward_vector(answer: ToolAnswer, gold: Sequence[ToolCall]) -> list[float]:
    """``[format, tool_name, arg_key, arg_value]``.

    format: there is a think block, and calls are present exactly when gold has calls (for gold
    without calls the tool_call block is absent or blank). tool_name: multiset F1 of the names.
    arg_key: mean over the aligned pairs of set F1 of the keys. arg_value: mean over the pairs of
    (sum over the gold keys that are present of `value_match`) / number of gold keys; an extra key
    costs in arg_key alone. No calls on either side: the last three are 1.
    """
    is_formed = bool(answer.calls) if gold else not answer.has_call_text
    layout = float(answer.has_think and is_formed)
    if not answer.calls and not gold:
        return [layout, 1.0, 1.0, 1.0]
    names = multiset_f1(_names(answer.calls), _names(gold))
    pairs = align(answer.calls, gold)
    keys = sum(set_f1(p[0].arguments, p[1].arguments) for p in pairs if p is not None)
    values = sum(_matched_share(*pair) for pair in pairs if pair is not None)
    return [layout, names, keys / len(pairs), values / len(pairs)]


def align(predicted: Sequence[ToolCall], gold: Sequence[ToolCall]) -> list[Pair]:
    """(predicted, gold) pairs; None for each call that is left over, on either side.

    In gold order, each gold call takes the best of the predicted calls that are left, by
    100 x same name + number of shared keys; of equally good ones the first, and one that shares
    nothing rather than none.
    """
    left = list(range(len(predicted)))
    pairs: list[Pair] = []
    for call in gold:
        if not left:
            pairs.append(None)
            continue
        best = max(left, key=lambda i: _likeness(predicted[i], call))
        left.remove(best)
        pairs.append((predicted[best], call))
    return [*pairs, *([None] * len(left))]


def value_match(predicted: Any, gold: Any) -> float:
    """How well an argument's value matches.

    Booleans by truth value, if either is one. A gold number: equal numbers, also as text. A gold
    list: multiset F1 of the normalised items, a single value counting as a list of one. A gold
    object: set F1 of the keys. Gold text: word F1 with text, else equality of the normalised texts.
    Articles count here.
    """
    if isinstance(gold, bool) or isinstance(predicted, bool):
        return float(bool(gold) == bool(predicted))
    if isinstance(gold, int | float):
        return float(_equals_number(predicted, gold))
    if isinstance(gold, list):
        items = predicted if isinstance(predicted, list) else [predicted]
        return multiset_f1(map(normalize_text, items), map(normalize_text, gold))
    if isinstance(gold, Mapping):
        return set_f1(predicted, gold) if isinstance(predicted, Mapping) else 0.0
    if isinstance(gold, str) and isinstance(predicted, str):
        return word_f1(predicted, gold)
    return float(normalize_text(predicted) == normalize_text(gold))


def _equals_number(predicted: Any, gold: float) -> bool:
    if isinstance(predicted, int | float):
        return predicted == gold
    try:
        return abs(float(str(predicted)) - gold) < _EQUAL
    except (ValueError, OverflowError):
        return normalize_text(predicted) == normalize_text(gold)


def _matched_share(predicted: ToolCall, gold: ToolCall) -> float:
    if not gold.arguments:
        return 1.0
    present = [key for key in gold.arguments if key in predicted.arguments]
    matched = sum(value_match(predicted.arguments[key], gold.arguments[key]) for key in present)
    return matched / len(gold.arguments)


def _likeness(predicted: ToolCall, gold: ToolCall) -> int:
    name = normalize_text(predicted.name)
    has_same_name = bool(name) and name == normalize_text(gold.name)
    return _SAME_NAME * has_same_name + len(predicted.arguments.keys() & gold.arguments.keys())


def _names(calls: Sequence[ToolCall]) -> list[str]:
    return [normalize_text(call.name) for call in calls]
