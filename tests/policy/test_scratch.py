import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.loading import PretrainedModel, encode_messages, save_model_folder
from vpo_lightning.policy.scratch import ScratchModel, word_tokenizer

WORDS = ["up", "down", "r0c0", "r0c0#", "|", "<one>"]
CONF = Path(__file__).resolve().parents[2] / "conf" / "model" / "maze_tiny.yaml"


def test_the_seed_alone_decides_the_weights() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, _ = ScratchModel().build(WORDS, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, _ = ScratchModel().build(WORDS, seed=5)
    other, _ = ScratchModel().build(WORDS, seed=6)
    names = dict(first.state_dict())
    assert all(torch.equal(w, second.state_dict()[name]) for name, w in names.items())
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_weights_start_with_the_deviations_that_learned_best() -> None:
    model, tokenizer = ScratchModel().build([f"w{i}" for i in range(500)], seed=0)
    assert len(tokenizer) == 503
    embedding = model.model.embed_tokens.weight
    # 32,192 and 12,288 draws: the standard error of a deviation is below 1%.
    assert embedding.std().item() == pytest.approx(0.5, rel=0.03)
    assert model.model.layers[0].mlp.gate_proj.weight.std().item() == pytest.approx(
        64**-0.5, rel=0.03
    )
    assert model.model.layers[2].mlp.down_proj.weight.std().item() == pytest.approx(
        192**-0.5, rel=0.03
    )
    assert torch.equal(model.lm_head.weight, 0.2 * embedding)
    assert torch.equal(model.model.norm.weight, torch.ones(64))


def test_the_maze_config_is_the_default_model() -> None:
    model = instantiate(OmegaConf.load(CONF))
    assert model == ScratchModel()
    built, _ = model.build([f"w{i}" for i in range(443)], seed=0)
    assert 200_000 < built.num_parameters() < 210_000


def test_words_round_trip_and_the_template_adds_nothing() -> None:
    tokenizer = word_tokenizer(WORDS)
    text = "r0c0 r0c0# | up"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == 4
    assert tokenizer.decode([*ids, 1], skip_special_tokens=True) == text
    messages = [{"role": "system", "content": "up down"}, {"role": "user", "content": text}]
    assert tokenizer.decode(encode_messages(tokenizer, messages)) == f"up down {text}"


@pytest.mark.parametrize("word", ["", "two words", "up", "<eos>", "tab\t"])
def test_words_that_are_no_vocabulary_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="vocabulary word"):
        word_tokenizer([*WORDS, word])


def test_a_prompt_word_outside_the_vocabulary_is_named() -> None:
    with pytest.raises(ConfigError, match=r"\['left', 'right'\]"):
        encode_messages(word_tokenizer(WORDS), [{"role": "user", "content": "up right left"}])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_heads": 3, "num_kv_heads": 2}, "num_kv_heads=2"),
        ({"head_dim": 33}, "head_dim=33"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"dtype": "int8"}, "dtype=int8"),
        ({"attention": "flash"}, "attention=flash"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"model.{message}"):
        ScratchModel(**fields).check()  # type: ignore[arg-type]


def test_a_saved_folder_loads_as_any_published_model(tmp_path: Path) -> None:
    model, tokenizer = ScratchModel().build(WORDS, seed=3)
    folder = save_model_folder(model, tokenizer, tmp_path / "deep" / "model")
    PretrainedModel(str(folder)).check()
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    again = AutoTokenizer.from_pretrained(folder)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.state_dict()[name]), name
    assert loaded.config.architectures == ["Qwen3ForCausalLM"]
    assert GenerationConfig.from_pretrained(folder).eos_token_id == tokenizer.eos_token_id == 1
    assert again.get_vocab() == tokenizer.get_vocab()
    assert again.chat_template == tokenizer.chat_template
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_saving_replaces_an_older_folder_as_a_whole(tmp_path: Path) -> None:
    model, tokenizer = ScratchModel().build(WORDS, seed=3)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "stale.txt").write_text("old")
    state = {name: torch.zeros_like(w) for name, w in model.state_dict().items()}
    save_model_folder(model, tokenizer, folder, state_dict=state)
    assert not (folder / "stale.txt").exists()
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert not any(weight.any() for weight in loaded.state_dict().values())


def test_a_failed_save_leaves_the_older_folder(tmp_path: Path) -> None:
    model, tokenizer = ScratchModel().build(WORDS, seed=3)
    folder = save_model_folder(model, tokenizer, tmp_path / "model")
    with pytest.raises(AttributeError):
        save_model_folder(model, None, folder)  # type: ignore[arg-type]
    PretrainedModel(str(folder)).check()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_bfloat16_and_gradient_checkpointing_are_applied() -> None:
    model, _ = ScratchModel(dtype="bfloat16", gradient_checkpointing=True).build(WORDS, seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.is_gradient_checkpointing


def test_the_cache_key_leaves_out_what_does_not_change_weights() -> None:
    assert ScratchModel(attention="eager").key() == ScratchModel().key()
    assert ScratchModel(hidden_size=32).key() != ScratchModel().key()


def test_checking_needs_neither_torch_nor_transformers() -> None:
    code = (
        "import sys\n"
        "from vpo_lightning.policy.loading import PretrainedModel\n"
        "from vpo_lightning.policy.scratch import ScratchModel\n"
        "ScratchModel().check(); PretrainedModel('org/name').check()\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
