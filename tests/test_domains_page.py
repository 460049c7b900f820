"""docs/domains.md says what is there, and its commands compose."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from vpo_lightning import build

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "domains.md").read_text(encoding="utf-8")


def commands() -> list[tuple[str, list[str]]]:
    text = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
    words = [shlex.split(line) for line in text.splitlines() if line.startswith("vpo-")]
    return [(program.removeprefix("vpo-"), overrides) for program, *overrides in words]


@pytest.mark.parametrize(("primary", "overrides"), commands(), ids=str)
def test_every_command_composes(primary: str, overrides: list[str]) -> None:
    with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
        assert compose(primary, overrides).task


def test_every_task_is_listed_with_its_objectives() -> None:
    table = re.findall(r"^\| (`[^|]*) \| ([^|]*) \| ([^|]*) \| [^|]* \|$", PAGE, re.MULTILINE)
    rows = {name: row for row in table for name in re.findall(r"`(\w+)`", row[0])}
    there = {path.stem for path in (ROOT / "conf" / "task").glob("*.yaml")}
    assert set(rows) <= there
    for name in set(rows) - {"livecodebench", "ultrafeedback_online"}:
        with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
            task = build.build_task(compose("train", [f"task={name}"]))
        objectives = [objective.name for objective in task.rows("train")[0].objectives]
        assert rows[name][1] == str(len(objectives))
        assert rows[name][2] == ", ".join(objectives)


def test_what_is_linked_or_named_exists() -> None:
    for name in re.findall(r"`(\w+_smoke)`|experiment=(\w+)", PAGE):
        assert (ROOT / "conf" / "experiment" / f"{name[0] or name[1]}.yaml").exists()
    assert (ROOT / "scripts" / "get_smollm2.py").exists()
    assert (ROOT / "tasks" / "livecodebench" / "prepare.py").exists()
