"""docs/methods.md describes every shipped method, and its numbers are those of the code."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from vpo_lightning import methods
from vpo_lightning.core.gdpo import gdpo
from vpo_lightning.rollout.credit import Method, advantages, reward_tensors, set_rewards

PAGE = Path(__file__).resolve().parents[1] / "docs" / "methods.md"
LINES = ["Formula", "Source", "Assumes", "Fails when", "Yaml"]
FILES = methods.ablation_files()
SURROUNDINGS: dict[str, Any] = {"m": 3, "trainer": {"max_steps": 10}}
NOT_FINITE = (math.nan, math.inf, -math.inf)
SCORES = torch.tensor([[1.0, 0.0, 0.5, 0.25]], dtype=torch.float64)


def sections() -> dict[str, list[str]]:
    """The lines of each method's section."""
    parts = re.split(r"^## (\S+)\n", PAGE.read_text(), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: text.strip().splitlines() for name, text in found.items() if name in FILES}


def generated_table() -> str:
    """The advantages of four scores under every method that takes single answers."""
    rows = ["| method | matched | official |", "|---|---|---|"]
    for name, path in sorted(FILES.items()):
        made = {p: methods.read_method(path, p, SURROUNDINGS) for p in ("matched", "official")}
        rows.append(f"| {name} | {' | '.join(shown(m) for m in made.values())} |")
    return "\n".join(rows)


def shown(method: Any) -> str:
    rewards = SCORES[:, :, None, None]
    weights = torch.ones(1, 1, 1, dtype=torch.float64)
    found = method.advantage(
        method.set_reward(rewards, weights),
        rewards=rewards,
        weights=weights,
        lengths=torch.ones(1, 4, dtype=torch.int64),
        objective_mask=torch.ones(1, 1, dtype=torch.bool),
    )
    return " ".join(f"{value + 0.0:.4f}" for value in found[0].tolist())


def bad_input_table() -> str:
    """What every method makes of bad input, through the functions that a run calls."""
    columns = (
        "NaN or infinite",
        "other K in a group",
        "above 1",
        "below 0",
        "group of one: matched",
        "official",
        "nothing parsed",
    )
    rows = [f"| method | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, path in sorted(FILES.items()):
        matched, official = (
            methods.read_method(path, preset, SURROUNDINGS) for preset in ("matched", "official")
        )
        not_finite = {outcome(matched, [[[v, 0.5]], [[0.5, 0.5]]]) for v in NOT_FINITE}
        cells = (
            " or ".join(sorted(not_finite)),
            outcome(matched, [[[0.5, 0.5]], [[0.5]]]),
            outcome(matched, [[[r, r / 2]] for r in (3.0, 0.5, 1.0, 2.0)]),
            outcome(matched, [[[-r, -r / 2]] for r in (3.0, 0.5, 1.0, 2.0)]),
            outcome(matched, [[[0.5, 0.5]]]),
            outcome(official, [[[0.5, 0.5]]]),
            outcome(matched, [[[0.0, 0.0]]] * 4),
        )
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def outcome(method: Method, group: list[list[list[float]]]) -> str:
    """What the first rollout gets: refused, used (a value of its own), 0, or the value alone."""
    weights = torch.full((1, 10, 2), 0.5, dtype=torch.float64)
    lengths = torch.ones(1, len(group), dtype=torch.int64)
    try:
        tensors = reward_tensors([group], weights, lengths, ["p"])
    except ValueError as error:
        return "refused" if "'p'" in str(error) else f"unnamed: {error}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # groups of one under official
        found = advantages(method, set_rewards(method, tensors, 8), tensors)
    if not bool(found.any()):
        return "0"
    return f"{float(found):g}" if found.numel() == 1 else "used"


def block(name: str) -> str:
    """A generated part of the page."""
    match = re.search(
        rf"<!-- {name}: tests/test_methods_page.py -->\n(.*?)\n<!-- end -->",
        PAGE.read_text(),
        flags=re.DOTALL,
    )
    assert match is not None
    return match.group(1)


def test_every_method_has_a_section_and_no_other() -> None:
    assert sorted(sections()) == sorted(FILES)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_section_has_its_five_lines_and_names_the_functions_of_the_yaml(name: str) -> None:
    lines = sections()[name]
    assert [line.removeprefix("- ").partition(":")[0] for line in lines] == LINES
    assert f"`ablation={name}`" in lines[-1]
    cfg: Any = OmegaConf.load(FILES[name])
    for slot in ("prompt", "weights", "set_reward", "advantage"):
        if cfg[slot]:
            function = cfg[slot]._target_.removeprefix("vpo_lightning.").removeprefix("core.")
            assert f"`{function}`" in lines[-1]


def test_the_table_is_what_the_code_computes() -> None:
    assert block("generated") == generated_table()


def test_bad_input_is_defined_for_every_method_as_the_page_says() -> None:
    assert block("bad input") == bad_input_table()


def test_gdpo_by_hand() -> None:
    rewards = torch.tensor([[[0, 1], [1, 0], [1, 1], [0, 0]], [[0, 2], [0, 2], [1, 0], [1, 0]]])
    found = gdpo(rewards=rewards.double()[:, :, None], weights=torch.ones(2, 1, 2).double())
    assert found[1].abs().max() == 0  # perfectly opposed objectives hold no signal


def test_every_claim_of_the_page_has_the_test_it_names() -> None:
    claims = re.findall(r"^- .*: `(tests/\S+)::(\w+)`$", PAGE.read_text(), flags=re.MULTILINE)
    assert len(claims) >= 8
    for path, name in claims:
        assert f"def {name}(" in (PAGE.parents[1] / path).read_text(), name
