"""What an evaluation refuses before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from tests.task_layer.toy import VectorTask
from vpo_lightning.build import build_task
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


@pytest.mark.parametrize(
    ("task", "prompts", "top_p", "seeds"),
    [("maze", 200, 1.0, 1), ("musique", 300, 1.0, 1), ("eureqa", 682, 0.95, 4),
     ("toolrl", 80, 0.95, 4)],
)  # fmt: skip
def test_pools_are_sampled_as_in_the_paper(
    task: str, prompts: int, top_p: float, seeds: int
) -> None:
    with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
        cfg = compose("eval", [f"task={task}", f"evaluation={task}"])
    check_evaluation(cfg, build_task(cfg), {0})
    own = cfg.evaluation
    found = (own.num_prompts, own.num_answers, own.temperatures[0], own.top_p, len(own.seeds))
    assert found == (prompts, 30, 0.7, top_p, seeds)
