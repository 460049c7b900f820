"""Log-probabilities with weights more precise than the computing, and of no completions at all."""

from __future__ import annotations

import pytest
import torch

from tests.text_model import save_text_model
from tests.tiny_models import ragged_batch, tiny_model
from vpo_lightning.core.types import TokenBatch
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.policy.loading import PretrainedModel
from vpo_lightning.policy.logprobs import Logprobs
from vpo_lightning.policy.lora import LoraSettings
from vpo_lightning.policy.start import load_start_policy


@pytest.mark.parametrize("share", [True, False])
def test_float32_weights_compute_in_bfloat16_and_learn_in_float32(share: bool) -> None:
    batch, model = ragged_batch(), tiny_model().train()
    exact, _ = completion_logprobs(model, batch, temperature=0.7)
    logprobs, entropy = Logprobs(0.7, share, torch.bfloat16)(model, batch)
    assert logprobs.dtype == entropy.dtype == torch.float32
    # bfloat16 has 8 bits; the logits of this model are around 3.
    torch.testing.assert_close(logprobs, exact, rtol=0, atol=0.2)
    assert not torch.allclose(logprobs, exact, rtol=0, atol=1e-4)
    logprobs.sum().backward()
    kinds = {weight.grad.dtype for weight in model.parameters() if weight.grad is not None}
    assert kinds == {torch.float32}


def test_weights_of_the_dtype_of_computing_are_used_as_they_are() -> None:
    batch, model = ragged_batch(), tiny_model()
    for dtype in (None, torch.float32):
        for got, expected in zip(
            Logprobs(0.7, dtype=dtype)(model, batch),
            completion_logprobs(model, batch, temperature=0.7),
            strict=True,
        ):
            assert torch.equal(got, expected)


def test_no_completions_have_no_logprobs() -> None:
    batch = ragged_batch()
    nothing = TokenBatch(
        batch.prompt_ids[:0],
        batch.prompt_lengths[:0],
        batch.completion_ids[:0],
        batch.completion_lengths[:0],
        batch.prompt_index[:0],
    )
    logprobs, entropy = Logprobs()(tiny_model(), nothing)
    assert logprobs.shape == entropy.shape == nothing.completion_ids.shape


@pytest.mark.parametrize(
    ("dtype", "master", "rank", "kinds"),
    [
        ("bfloat16", "float32", 0, {torch.float32}),
        ("bfloat16", None, 0, {torch.bfloat16}),
        ("float64", "float32", 0, {torch.float64}),
        ("bfloat16", "float32", 2, {torch.bfloat16, torch.float32}),
    ],
)
def test_trained_weights_have_the_wider_dtype(
    tmp_path_factory: pytest.TempPathFactory,
    dtype: str,
    master: str | None,
    rank: int,
    kinds: set[torch.dtype],
) -> None:
    folder = save_text_model(tmp_path_factory.mktemp("models") / "start")
    source = PretrainedModel(str(folder), dtype, master, lora=LoraSettings(rank=rank))
    model = load_start_policy(folder, source, seed=0)
    assert {weight.dtype for weight in model.parameters()} == kinds
    learning = {weight.dtype for weight in model.parameters() if weight.requires_grad}
    assert learning == ({torch.float32} if rank else kinds)
