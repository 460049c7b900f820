"""Tasks that draw."""

from __future__ import annotations

from collections.abc import Sequence

from tests.task_layer.toy import VectorTask
from vpo_lightning.picture import Element
from vpo_lightning.task import PromptRow


class Clumsy(VectorTask):
    """Fails to draw."""

    def picture(
        self, row: PromptRow, answers: Sequence[str], rewards: Sequence[Sequence[float]]
    ) -> Element:
        """Divides by zero."""
        raise ZeroDivisionError(f"no picture of {row.id}")
