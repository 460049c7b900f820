"""The sentences at the top of the report."""

from __future__ import annotations

import pytest

from vpo_lightning.evaluation.intervals import Difference
from vpo_lightning.evaluation.report.evaluations import Evaluated
from vpo_lightning.evaluation.report.headline import Contest, verdict


def sentences(mine: float, theirs: float, gap: Difference) -> list[str]:
    heroes, rivals = (
        [Evaluated(name, name, "T=0.7", {"diversity": (value, None, None)})]
        for name, value in (("vpo", mine), ("grpo", theirs))
    )
    match = Contest("T=0.7", "vpo", "grpo", heroes, rivals, is_over_seeds=True)
    return verdict(match, {"diversity": gap})


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (Difference(-0.26, -0.4, -0.1, 0.01), "Its answers are less diverse: 1.227 against 1.486"),
        (Difference(-0.26, -0.6, 0.1, 0.2), "Its answers are neither more nor less diverse for"),
    ],
)
def test_diversity_counts_as_different_only_if_the_interval_says_so(
    gap: Difference, words: str
) -> None:
    assert any(s.startswith(words) and "95% interval" in s for s in sentences(1.227, 1.486, gap))
