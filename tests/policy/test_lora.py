"""Adapters on a policy: what they change, and what is handed over and saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.text_model import save_text_model
from tests.tiny_models import gradients, ragged_batch, tiny_model
from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.export import ADAPTER_FOLDER, export_policy
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.policy.loading import load_model
from vpo_lightning.policy.lora import LoraSettings, add_adapters, without_adapters
from vpo_lightning.policy.reference import ReferencePolicy
from vpo_lightning.policy.weights import adapter_weights, full_weights, load_full_weights

IDS = torch.arange(2, 14)[None]


def adapted(
    settings: LoraSettings | None = None,
    *,
    is_random: bool = True,
    dtype: torch.dtype = torch.float64,
) -> PreTrainedModel:
    """A tiny model with tied embeddings and adapters of a visible size."""
    model = tiny_model(dtype=dtype, is_exact=True, tie_word_embeddings=True)
    settings = settings or LoraSettings(rank=4, alpha=6)
    add_adapters(model, settings, torch.promote_types(dtype, torch.float32), seed=3)
    if is_random:
        for name, weight in model.named_parameters():
            if ".lora_B." in name:
                nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(1))
    return model


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(IDS).logits


def copies(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_new_adapters_change_nothing_and_are_all_that_learns() -> None:
    start = tiny_model(dtype=torch.float64, is_exact=True, tie_word_embeddings=True)
    model = adapted(is_random=False)
    assert torch.equal(logits(model), logits(start))
    learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert learning == set(adapter_weights(model))
    assert len(learning) == 2 * 7 * 2  # A and B of seven linear layers in two blocks; not the head


def test_the_same_seed_gives_the_same_adapters_whatever_was_drawn_before() -> None:
    first = adapter_weights(adapted(is_random=False))
    torch.rand(5)
    second = adapter_weights(adapted(is_random=False))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_merged_weights_are_the_adapted_policy_and_leave_it_untouched() -> None:
    model = adapted()
    before = copies(model)
    weights = dict(full_weights(model))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    plain = tiny_model(dtype=torch.float64, is_exact=True, tie_word_embeddings=True, seed=1)
    assert list(weights) == list(plain.state_dict())
    plain.load_state_dict(weights)
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    # (W + BA) x against W x + B (A x), in float64.
    torch.testing.assert_close(logits(plain), logits(model), rtol=1e-10, atol=1e-10)
    assert not torch.allclose(logits(model), logits(tiny_model(dtype=torch.float64)), atol=1e-2)


def test_a_merged_weight_is_rounded_once() -> None:
    model = adapted(dtype=torch.bfloat16)
    layer = model.model.layers[0].mlp.down_proj  # type: ignore[union-attr, index]
    a, b = (w["default"].weight.double() for w in (layer.lora_A, layer.lora_B))
    exact = layer.base_layer.weight.double() + 6 / 4 * (b @ a)
    merged = dict(full_weights(model))["model.layers.0.mlp.down_proj.weight"]
    assert merged.dtype == torch.bfloat16
    assert (
        merged == exact.bfloat16()
    ).float().mean() > 0.99  # float32 sums tie otherwise now and then


def test_without_adapters_the_policy_is_the_start_policy() -> None:
    start = tiny_model(dtype=torch.float64, is_exact=True, tie_word_embeddings=True)
    model = adapted().train()
    changed = logits(model)
    with without_adapters(model):
        assert torch.equal(logits(model), logits(start))
    with ReferencePolicy(model, None, None).model() as reference:
        assert reference is model
        assert torch.equal(logits(reference), logits(start))
    assert torch.equal(logits(model), changed)
    assert model.training
    assert all(
        weight.requires_grad for name, weight in model.named_parameters() if ".lora_" in name
    )


def test_the_reference_of_a_policy_without_adapters_is_a_frozen_copy_of_the_given_dtype() -> None:
    model = tiny_model().train()
    with ReferencePolicy(model, torch.bfloat16, None).model() as reference:
        assert reference is not model
        assert {weight.dtype for weight in reference.parameters()} == {torch.bfloat16}
        assert not any(weight.requires_grad for weight in reference.parameters())
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_gradient_checkpointing_changes_no_gradient_of_an_adapter() -> None:
    batch = ragged_batch()
    found = []
    for is_checkpointing in (False, True):
        model = adapted().train()
        if is_checkpointing:
            model.gradient_checkpointing_enable()
        logprobs, _ = completion_logprobs(model, batch, share_prompts=False)
        logprobs.sum().backward()
        found.append(gradients(model))
    assert len(found[0]) == 28
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_targets_are_found_by_the_last_words_of_a_name() -> None:
    names = adapter_weights(adapted(LoraSettings(rank=2, targets=["q_proj", "1.mlp.up_proj"])))
    assert sorted({name.partition(".lora_")[0] for name in names}) == [
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.mlp.up_proj",
        "model.layers.1.self_attn.q_proj",
    ]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["query"], r"model\.lora\.targets: .* no linear layer query; it has down_proj, "),
        (["embed_tokens"], "no linear layer embed_tokens"),
        (["lm_head"], "lm_head is tied to the input embedding"),
    ],
)
def test_a_layer_that_cannot_be_adapted_is_an_error(targets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adapted(LoraSettings(rank=2, targets=targets))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": -1}, r"model\.lora\.rank=-1: it must be a whole number"),
        ({"alpha": 0}, r"model\.lora\.alpha=0: it must be positive"),
        ({"dropout": 1.0}, r"model\.lora\.dropout=1\.0: it must be in \[0, 1\)"),
        ({"targets": []}, r"model\.lora\.targets=\[\]: it must be names"),
        ({"targets": "q_proj"}, r"expected a list of names, \[q_proj\], or all-linear"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoraSettings(**settings).check()  # type: ignore[arg-type]


def test_the_saved_policy_loads_merged_and_its_adapter_by_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    start = save_text_model(tmp_path / "start")
    model = load_model(start, "float32", "sdpa")
    add_adapters(model, LoraSettings(rank=4), torch.float32, seed=0)
    load_full_weights(
        model, {n: torch.full_like(w, 0.02) for n, w in adapter_weights(model).items()}
    )
    folder = tmp_path / "policy"
    export_policy(model, str(start), folder, dtype=torch.float32)
    with_adapter = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(start), folder / ADAPTER_FOLDER
    )
    for loaded in (AutoModelForCausalLM.from_pretrained(folder), with_adapter):
        # The sums of float32 products in another order.
        torch.testing.assert_close(logits(loaded), logits(model), rtol=1e-4, atol=1e-4)
    assert (folder / "generation_config.json").read_text() == (
        start / "generation_config.json"
    ).read_text()
    assert not torch.allclose(
        logits(model), logits(load_model(start, "float32", "sdpa")), atol=1e-2
    )


def test_weights_are_saved_in_the_dtype_of_computing(tmp_path: Path) -> None:
    start = save_text_model(tmp_path / "start")
    policy = load_model(start, "float32", "sdpa")
    export_policy(policy, str(start), tmp_path / "policy", dtype=torch.bfloat16)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype="auto")
    assert saved.dtype == torch.bfloat16
    assert all(
        torch.equal(saved.state_dict()[name], value.bfloat16())
        for name, value in policy.state_dict().items()
    )
    assert not (tmp_path / "policy" / ADAPTER_FOLDER).exists()
