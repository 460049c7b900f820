import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.loading import (
    PretrainedModel,
    encode_messages,
    load_model,
    load_tokenizer,
    save_model_folder,
)
from vpo_lightning.policy.scratch import ScratchModel

MESSAGES = [{"role": "user", "content": "hello world"}]


def bos_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer that puts <s> in front of everything it encodes."""
    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2, "hello": 3, "world": 4, "user:": 5, "bot:": 6}
    backend: Any = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=template,
    )


def test_a_template_and_a_tokenizer_that_both_write_bos_give_one() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %} {{ m.role }}: {{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %} bot:{% endif %}"
    )
    tokenizer = bos_tokenizer(template)
    assert tokenizer("hello")["input_ids"] == [0, 3]  # it does add one by itself
    assert encode_messages(tokenizer, MESSAGES) == [0, 5, 3, 4, 6]


def test_template_variables_reach_the_template() -> None:
    tokenizer = bos_tokenizer("{{ messages[0].content }}{% if short %}{% else %} bot:{% endif %}")
    assert encode_messages(tokenizer, MESSAGES, {"short": True}) == [3, 4]
    assert encode_messages(tokenizer, MESSAGES, {"short": False}) == [3, 4, 6]


def test_no_chat_template_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"no chat template.*model\.path"):
        encode_messages(bos_tokenizer(None), MESSAGES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, tokenizer = ScratchModel().build(["hello", "world"], seed=0)
    return save_model_folder(model, tokenizer, tmp_path_factory.mktemp("models") / "model")


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def sharded_without_a_shard(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.rename(folder / "model-00001-of-00002.safetensors")
    names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))


@pytest.mark.parametrize(
    ("damage", "missing"),
    [
        (without("config.json"), "config.json"),
        (without("model.safetensors"), "no weights"),
        (without("tokenizer.json"), "no tokenizer"),
        (sharded_without_a_shard, "model-00002-of-00002.safetensors"),
    ],
)
def test_a_damaged_folder_is_refused_by_the_missing_file(
    folder: Path, tmp_path: Path, damage: Callable[[Path], None], missing: str
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    PretrainedModel(str(copy)).check()
    damage(copy)
    with pytest.raises(ConfigError, match=f"model.path={copy}.*{missing}"):
        PretrainedModel(str(copy)).check()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"path": "./nowhere"}, "model.path=./nowhere: no such folder"),
        ({"path": "/nowhere/at/all"}, "no such folder"),
        ({"path": "a/b/c"}, "not a Hub id"),
        ({"path": "org/name", "dtype": "half"}, "model.dtype=half"),
        ({"path": "org/name", "attention": "fast"}, "model.attention=fast"),
    ],
)
def test_settings_that_cannot_load_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PretrainedModel(**fields).check()


def test_a_hub_id_passes_without_a_network() -> None:
    PretrainedModel("Qwen/Qwen3-1.7B").check()


def test_a_folder_loads_in_the_wanted_dtype_and_attention(folder: Path) -> None:
    model = load_model(folder, "bfloat16", "eager")
    assert model.dtype == torch.bfloat16
    assert model.config._attn_implementation == "eager"
    assert load_tokenizer(folder)("hello world")["input_ids"] == [3, 4]


def test_a_pretrained_model_loads_with_its_settings(folder: Path) -> None:
    source = PretrainedModel(str(folder), dtype="float32", gradient_checkpointing=True)
    model, tokenizer = source.load()
    assert model.dtype == torch.float32
    assert model.is_gradient_checkpointing
    assert len(tokenizer) == 5
    assert source.key()["path"] == str(folder)


def test_a_system_prompt_is_added_where_messages_have_none() -> None:
    def encode(messages: list[dict[str, str]], system: str | None) -> list[int]:
        return encode_messages(bos_tokenizer(roles), messages, {}, system)

    roles = "{% for m in messages %}{{ m.content }} {% endfor %}"
    plain = encode(MESSAGES, None)
    asked = encode(MESSAGES, MESSAGES[0]["content"])
    assert asked == plain + plain
    own = [{"role": "system", "content": MESSAGES[0]["content"]}, *MESSAGES]
    assert encode(own, "of the run") == asked
