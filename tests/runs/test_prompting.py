"""A policy is asked in the same words in warm-up, training, evaluation and serving."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from tests.text_model import save_text_model
from vpo_lightning import build
from vpo_lightning.deployed import Deployed, load_codec
from vpo_lightning.evaluated import load_policy
from vpo_lightning.policy.loading import load_tokenizer
from vpo_lightning.policy.warmup import _Demonstrations
from vpo_lightning.prompting import SingleAnswer


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
        return compose("train", list(overrides))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text_model(tmp_path_factory.mktemp("model") / "text")


def test_system_prompt_and_template_variables_reach_every_use(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = (
        "{{ enable_thinking }}:{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    )
    tokenizer.save_pretrained(model)
    overrides = ("task=eureqa", "model=pretrained", f"model.path={model}", "warmup=text")
    cfg = composed(*overrides, "system_prompt=Be brief.")
    task = build.build_task(cfg)
    row = task.rows("train")[0]
    messages = SingleAnswer().messages(task, row)
    ids = build.build_encoder(cfg, str(model))(messages)
    text = str(load_tokenizer(model).decode(ids))
    assert text.startswith("False:system=Be brief.;user=")
    served = load_codec(Deployed(str(model), "served", cfg=cfg))
    assert served.encode(messages) == ids
    from hydra.utils import instantiate

    settings = instantiate(cfg.warmup, goal_fraction=0.0, encoding=build.chat_settings(cfg))
    batch = _Demonstrations(task, load_tokenizer(model), settings).batch([row], Random(0))
    assert batch.prompt_ids[0, : int(batch.prompt_lengths[0])].tolist() == ids


def test_a_model_without_a_config_of_its_own_does_not_think(model: Path) -> None:
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = "{{ enable_thinking is defined and not enable_thinking }}"
    tokenizer.save_pretrained(model)

    def text(ids: Sequence[int]) -> str:
        return str(load_tokenizer(model).decode(list(ids)))

    messages = [{"role": "user", "content": "hello"}]
    assert text(load_codec(Deployed(str(model), "a model folder")).encode(messages)) == "True"
    # vpo-eval and vpo-diagnose of a folder, whatever `model` says of another model.
    with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
        cfg = compose("eval", [f"policy={model}", "task=eureqa", "warmup=none"])
    engine, encode, _ = load_policy(cfg, str(model))
    engine.close()
    assert text(encode(messages)) == "True"
    # A user's own yaml that names a folder and nothing else.
    bare = ("model=pretrained", f"model.path={model}", "~model.chat_template_kwargs")
    cfg = composed("task=eureqa", "warmup=none", *bare)
    assert text(build.build_encoder(cfg, str(model))(messages)) == "True"
    assert text(load_codec(Deployed(str(model), "served", cfg=cfg)).encode(messages)) == "True"
    cfg = composed("task=eureqa", "model=qwen2_5_coder_7b", "warmup=none")  # needs no variables
    assert text(build.build_encoder(cfg, str(model))(messages)) == "False"


def test_a_think_block_that_the_template_writes_counts_as_the_tasks_answer() -> None:
    thinking_off = composed("task=toolrl", "model=qwen3_8b")
    assert thinking_off.task.prefill == "<think>\n\n</think>\n\n"
    task = build.build_task(thinking_off)
    row = task.rows("train")[0]
    (answer,) = SingleAnswer().parse(task, "<tool_call>{}</tool_call>")
    assert answer is not None
    assert task.score(answer, row)[0] == 1.0
    assert composed("task=toolrl", "model=qwen3_8b", 'model.prefill=""').task.prefill == ""
    assert composed("task=toolrl", "model=smollm2_135m").task.prefill == ""
