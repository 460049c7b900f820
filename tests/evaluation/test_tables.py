"""Tables for the terminal hold every figure whole."""

from __future__ import annotations

from vpo_lightning.evaluation.tables import evaluation_table


def test_a_long_policy_name_cuts_nothing_off() -> None:
    name = "vpo - start, single (12-31-54_maze_grpo_with_a_long_folder_name), T=0.7"
    table = evaluation_table({"T=0.7": {name: {"best@1": 0.25, "diversity": 1.5}}})
    row = table.splitlines()[-1]
    assert row.split("  ")[0] == name
    assert row.split()[-2:] == ["0.250", "1.500"]
    assert "…" not in table
