"""Alarms on series made by hand; that training raises them is in tests/runs/test_evaluation.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation.alarms import NAMES, AlarmThresholds, AlarmWatch, find_alarms

Series = Callable[[int], float]
HEALTHY: dict[str, float] = {
    "rollout/diversity": 1.2,
    "rollout/truncated_fraction": 0.02,
    "rollout/no_signal_fraction": 0.1,
    "rollout/win_share/0": 0.5,
    "rollout/win_share/1": 0.3,
    "rollout/win_share/2": 0.2,
    "rollout/gold": 0.4,
    "rollout/diamond": 0.4,
    "train/kl": 0.05,
}


def run(steps: int = 60, **series: Series) -> list[dict[str, float]]:
    """The records of a run; a keyword names a key's last part and gives its value by step."""
    records: list[dict[str, float]] = []
    for step in range(1, steps + 1):
        record = {"step": float(step), **HEALTHY}
        for name, value in series.items():
            (key,) = (k for k in HEALTHY if k.replace("win_share/", "slot").endswith(name))
            record[key] = value(step)
        records.append(record)
    return records


def ramp(start: float, end: float) -> Series:
    """From one value at step 20 to another at step 50, linearly."""
    return lambda step: start + (end - start) * min(max(step - 20, 0), 30) / 30


def names(records: list[dict[str, float]], **thresholds: float) -> list[str]:
    found = find_alarms(records, ["gold", "diamond"], AlarmThresholds(**thresholds))  # type: ignore[arg-type]
    return [alarm.name for alarm in found]


@pytest.mark.parametrize(
    ("name", "series"),
    [
        ("diversity_collapse", {"diversity": ramp(1.2, 0.2)}),
        ("dead_slot", {"slot1": ramp(0.3, 0.01)}),
        ("growing_truncation", {"truncated_fraction": ramp(0.02, 0.4)}),
        ("reward_hacking", {"gold": ramp(0.4, 1.0), "diamond": ramp(0.4, 0.1)}),
        ("kl_runaway", {"kl": ramp(0.05, 3.0)}),
        ("no_signal", {"no_signal_fraction": ramp(0.1, 0.95)}),
    ],
)
def test_alarm_is_raised_once_by_what_it_is_for(name: str, series: dict[str, Series]) -> None:
    (alarm,) = find_alarms(run(60, **series), ["gold", "diamond"])
    assert alarm.name == name
    assert 20 < alarm.first_step < 60 == alarm.last_step
    assert not names(run())


@pytest.mark.parametrize(
    "series",
    [
        {"gold": ramp(0.4, 1.0), "diamond": ramp(0.4, 0.5)},  # both rise
        {"gold": lambda step: 0.97, "diamond": ramp(0.4, 0.1)},  # full from the start
        {"truncated_fraction": lambda step: 0.3},  # truncated, but not growing
        {"diversity": ramp(1.2, 0.6)},  # half is left
        {"kl": lambda step: 4.0 if step == 30 else 0.05},  # one wild step
    ],
)
def test_no_alarm_for_less(series: dict[str, Series]) -> None:
    assert not names(run(60, **series))


def test_an_alarm_that_is_over_can_be_raised_again() -> None:
    twice = run(80, kl=lambda step: 2.0 if step in range(20, 30) or step in range(60, 80) else 0.05)
    first, second = find_alarms(twice, [])
    assert first.first_step < 30 <= first.last_step < 45 < second.first_step
    watch = AlarmWatch([])
    stands: list[bool] = []
    for record in twice:
        watch.add(record)
        stands.append(watch.standing()["kl_runaway"])
    assert (stands[5], stands[32], stands[55], stands[79]) == (False, True, False, True)


def test_short_runs_and_missing_figures_raise_nothing() -> None:
    assert not names(run(5, kl=lambda step: 9.0))
    assert not find_alarms([{"step": float(s)} for s in range(40)], ["gold"])
    assert set(AlarmWatch([]).standing()) == set(NAMES)


def test_thresholds_are_settings() -> None:
    assert names(run(kl=lambda step: 0.2), kl=0.1) == ["kl_runaway"]
    settings: list[dict[str, Any]] = [{"kl": 0.0}, {"window": 0}, {"fall": -1.0}]
    for wrong in settings:
        with pytest.raises(ConfigError, match=r"alarms\.\w+="):
            AlarmThresholds(**wrong)
