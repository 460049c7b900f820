"""Counters of groups without signal and of guarded rollouts."""

import math

import torch

from vpo_lightning.core.advantages import group_normalized, leave_one_out_normalized
from vpo_lightning.core.signal import groups_with_contrast, groups_with_signal, signal_report


def test_a_report_counts_groups_and_guarded_rollouts() -> None:
    scores = torch.tensor([[0.35] * 7 + [0], [0.5] * 8], dtype=torch.float64)
    report = signal_report(scores, leave_one_out_normalized(scores))
    assert report["zero_std_fraction"] == 0.5
    assert report["zero_advantage_fraction"] == 0.5
    # The odd rollout of the first group, of sixteen.
    assert report["guarded_fraction"] == 1 / 16
    assert 0 < report["max_abs_advantage"] < 1


def test_a_z_norm_reports_its_largest_magnitude() -> None:
    scores = torch.tensor([[1.0] + [0.0] * 8])
    report = signal_report(scores, group_normalized(scores, eps=0.0))
    assert math.isclose(report["max_abs_advantage"], math.sqrt(8))
    assert report["guarded_fraction"] == 0


def test_groups_without_any_advantage_have_no_signal() -> None:
    advantages = torch.tensor([[0.0, 0.0], [0.0, 0.1]])
    assert groups_with_signal(advantages).tolist() == [False, True]


def test_rounding_is_no_signal() -> None:
    assert groups_with_signal(torch.tensor([[1e-17, -1e-17]], dtype=torch.float64)).tolist() == [
        False
    ]


def test_a_shift_of_a_whole_group_is_no_contrast() -> None:
    advantages = torch.tensor([[-0.22, -0.22], [0.0, 0.0], [0.0, 0.1]])
    assert groups_with_contrast(advantages).tolist() == [False, False, True]
    assert groups_with_signal(advantages).tolist() == [True, False, True]


def test_a_group_of_one_has_the_contrast_of_its_signal() -> None:
    assert groups_with_contrast(torch.tensor([[0.5], [0.0]])).tolist() == [True, False]


def test_an_empty_batch_reports_zeros() -> None:
    report = signal_report(torch.zeros(0, 4), torch.zeros(0, 4))
    assert not any(report.values())
