"""What an evaluation refuses before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from omegaconf import DictConfig, OmegaConf

from tests.task_layer.toy import VectorTask
from vpo_lightning.errors import ConfigError
from vpo_lightning.evaluation_rules import check_evaluation
from vpo_lightning.task import PromptRow


class HeldOut(VectorTask):
    """A domain that is evaluated and never trained on."""

    def rows(self, split: str) -> Sequence[PromptRow]:
        if split != "test":
            raise ConfigError(f"split={split}: there is only test")
        return super().rows(split)


def config(solved: str) -> DictConfig:
    evaluation = {"num_answers": 3, "num_prompts": 1, "metrics": {"solved": {solved: 1.0}}}
    return OmegaConf.create({"m": 3, "ablation": {"prompt": {}}, "evaluation": evaluation})


def test_figures_are_checked_against_the_prompts_that_are_evaluated() -> None:
    task = HeldOut()
    known = [objective.name for objective in task.rows("test")[0].objectives]
    check_evaluation(config(known[0]), task, {len(known)})
    with pytest.raises(ConfigError, match=r"evaluation.metrics.solved=\['nothing'\]"):
        check_evaluation(config("nothing"), task, {len(known)})
