"""What the table of a sweep says about the cost of its runs."""

from __future__ import annotations

from vpo_lightning.evaluation.cost import cost_table, total_cost


def test_the_table_of_a_sweep_holds_every_kind_of_cost() -> None:
    step = {
        "cost/prompt_tokens": 1_000_000.0,
        "cost/generated_tokens": 2_000_000.0,
        "cost/trained_tokens": 500_000.0,
        "cost/scorer_calls": 42.0,
        "time/generate": 30.0,
        "time/backward": 12.0,
        "time/device_seconds": 1800.0,
        "memory/process_mib": 512.0,
    }
    cost = {**total_cost([step, step]), "gain_per_million_tokens": {"best@1": 0.0125}}
    assert cost_table([{"run": {"name": "vpo", "seed": 3}, "cost": cost}]).splitlines() == [
        "| run | seed | 10^6 tokens prompted | generated | trained | scorer calls "
        "| seconds by stage | device-hours | peak MiB | best@1 gained per 10^6 tokens "
        "| expected_max@30 gained per 10^6 tokens "
        "| deployed_expected_max gained per 10^6 tokens |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        "| vpo | 3 | 2.000 | 4.000 | 1.000 | 84 | generate 60, backward 24 | 1.000 | 512 | +0.0125 "
        "|  |  |",
    ]
