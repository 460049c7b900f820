import dataclasses
import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tiny_models import FAMILIES, gradients, ragged_batch, tiny_model
from vpo_lightning.core.types import TokenBatch
from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.policy.scratch import ScratchModel
from vpo_lightning.policy.warmup import demonstration_loss

F64 = torch.float64


def computed(model: Any, batch: TokenBatch, **kwargs: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Values, and gradients of a sum in which every token counts differently."""
    logprobs, entropy = completion_logprobs(model, batch, **kwargs)
    rows, tokens = (torch.arange(size, dtype=logprobs.dtype) for size in logprobs.shape)
    factors = 1 + 0.05 * rows[:, None] - 0.03 * tokens
    ((logprobs * factors).sum() + 0.3 * (entropy * factors.flip(0)).sum()).backward()
    return logprobs.detach(), entropy.detach(), gradients(model)


def row_by_row(model: Any, batch: TokenBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """The definition: each row alone, without padding, through the whole model."""
    rows, width = batch.completion_ids.shape
    logprobs = torch.zeros(rows, width, dtype=F64)
    entropy = torch.zeros(rows, width, dtype=F64)
    for i in range(rows):
        p, n = int(batch.prompt_index[i]), int(batch.completion_lengths[i])
        start = int(batch.prompt_lengths[p])
        ids = torch.cat((batch.prompt_ids[p, :start], batch.completion_ids[i, :n]))
        logits = model(input_ids=ids[None]).logits[0, start - 1 : -1].double() / temperature
        logs = logits.log_softmax(-1)
        logprobs[i, :n] = logs.gather(-1, batch.completion_ids[i, :n, None])[:, 0]
        entropy[i, :n] = -(logs.exp() * logs).sum(-1)
    return logprobs, entropy


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_those_of_each_row_alone(family: str, share: bool) -> None:
    model, batch = tiny_model(family, F64, is_exact=True), ragged_batch()
    with torch.no_grad():
        got = completion_logprobs(model, batch, temperature=0.7, share_prompts=share)
        expected = row_by_row(model, batch, 0.7)
    for value, reference in zip(got, expected, strict=True):
        torch.testing.assert_close(value, reference, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_shared_prompts_and_plain_rows_agree_in_values_and_gradients(
    family: str, tied: bool, dtype: torch.dtype, tolerance: float
) -> None:
    # Norms in the model's own dtype, or float64 would be rounded to float32 in every layer.
    model = tiny_model(family, dtype, is_exact=True, tie_word_embeddings=tied)
    batch = ragged_batch()
    shared = computed(model, batch, share_prompts=True)
    plain = computed(model, batch, share_prompts=False)
    assert len(shared[2]) == len(plain[2]) == len(list(model.parameters()))
    for a, b in zip(shared[:2], plain[:2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
    for a, b in zip(shared[2], plain[2], strict=True):
        # Gradients sum over tokens and reach tens: the tolerance is relative to their size.
        assert (a - b).abs().max() <= tolerance * b.abs().max().clamp_min(1.0)


@pytest.mark.parametrize("share", [True, False])
def test_eager_attention_gives_the_same(share: bool) -> None:
    batch = ragged_batch()
    sdpa = tiny_model("qwen3", F64, is_exact=True)
    eager = tiny_model("qwen3", F64, is_exact=True, attn_implementation="eager")
    assert eager.config._attn_implementation == "eager"
    with torch.no_grad():
        a, _ = completion_logprobs(sdpa, batch, share_prompts=share)
        b, _ = completion_logprobs(eager, batch, share_prompts=share)
    # transformers' eager softmax is float32.
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("extra", [3, 7])
def test_padding_changes_nothing(extra: int, share: bool) -> None:
    model, batch = tiny_model(), ragged_batch()
    rows, prompts = len(batch.prompt_index), len(batch.prompt_lengths)
    junk = {
        "prompt_ids": torch.cat((batch.prompt_ids, torch.full((prompts, extra), 1)), 1),
        "completion_ids": torch.cat((batch.completion_ids, torch.full((rows, extra), -100)), 1),
    }
    padded = dataclasses.replace(batch, **junk)
    values = computed(model, batch, share_prompts=share)
    others = computed(model, padded, share_prompts=share)
    width = batch.completion_ids.shape[1]
    assert others[0].shape == (rows, width + extra)
    assert not others[0][:, width:].any()
    assert torch.equal(values[0], others[0][:, :width])
    assert torch.equal(values[1], others[1][:, :width])
    for mine, other in zip(values[2], others[2], strict=True):
        assert torch.equal(mine, other)


def test_one_row_padded_by_0_3_or_7_has_the_same_logprobs() -> None:
    model = tiny_model()
    values = []
    for extra in (0, 3, 7):
        batch = TokenBatch(
            prompt_ids=torch.tensor([[5, 7, 9] + [1] * extra]),
            prompt_lengths=torch.tensor([3]),
            completion_ids=torch.tensor([[4, 1, 6, 1] + [1] * extra]),  # eos is also padding
            completion_lengths=torch.tensor([4]),
            prompt_index=torch.tensor([0]),
        )
        values.append(completion_logprobs(model, batch)[0][:, :4])
    for other in values[1:]:
        torch.testing.assert_close(values[0], other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("share", [True, False])
def test_gradients_do_not_depend_on_the_split_into_micro_batches(share: bool) -> None:
    model, batch = tiny_model("qwen3", F64, is_exact=True), ragged_batch()

    def accumulated(parts: list[Tensor]) -> list[Tensor]:
        for rows in parts:
            part = dataclasses.replace(
                batch,
                completion_ids=batch.completion_ids[rows],
                completion_lengths=batch.completion_lengths[rows],
                prompt_index=batch.prompt_index[rows],
            )
            logprobs, entropy = completion_logprobs(model, part, share_prompts=share)
            (logprobs.sum() + 0.3 * entropy.sum()).backward()
        return gradients(model)

    rows = torch.arange(12)
    whole = accumulated([rows])
    for parts in (list(rows.split(5)), list(rows.split(1)), [rows.flip(0)]):
        for a, b in zip(whole, accumulated(parts), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_prompt_is_read_once_and_only_if_it_has_completions() -> None:
    model, batch = tiny_model(), ragged_batch(prompts=3, group=4)
    first_two = batch.prompt_index < 2
    part = dataclasses.replace(
        batch,
        completion_ids=batch.completion_ids[first_two],
        completion_lengths=batch.completion_lengths[first_two],
        prompt_index=batch.prompt_index[first_two],
    )
    read: list[tuple[int, ...]] = []
    model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: read.append(tuple(inputs[0].shape))
    )
    completion_logprobs(model, part)
    width = int(part.completion_lengths.max())
    assert read == [(2, int(batch.prompt_lengths.max())), (8, width - 1)]


def test_completions_of_one_token_are_predicted_by_the_prompt_alone() -> None:
    model, batch = tiny_model(), ragged_batch(longest=1)
    shared, plain = (computed(model, batch, share_prompts=share) for share in (True, False))
    torch.testing.assert_close(shared[0], plain[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(shared[2], plain[2], rtol=1e-4, atol=1e-5)


def test_an_empty_completion_gets_zeros_and_disturbs_nobody() -> None:
    model, batch = tiny_model(), ragged_batch()
    lengths = batch.completion_lengths.clone()
    lengths[2] = 0
    empty = dataclasses.replace(batch, completion_lengths=lengths)
    for share in (True, False):
        full, _ = completion_logprobs(model, batch, share_prompts=share)
        values, _ = completion_logprobs(model, empty, share_prompts=share)
        others = torch.arange(12) != 2
        assert not values[2].any()
        torch.testing.assert_close(values[others], full[others], rtol=0, atol=1e-5)


def test_gradient_checkpointing_gives_the_same_gradients_and_refuses_shared_prompts() -> None:
    model, batch = tiny_model("qwen3", F64, is_exact=True).train(), ragged_batch()
    plain = computed(model, batch, share_prompts=False)
    model.gradient_checkpointing_enable()
    again = computed(model, batch, share_prompts=False)
    torch.testing.assert_close(plain[2], again[2], rtol=1e-12, atol=1e-12)
    with pytest.raises(ConfigError, match="gradient_checkpointing=true"):
        completion_logprobs(model, batch, share_prompts=True)
    with torch.no_grad():
        completion_logprobs(model.eval(), batch, share_prompts=True)


def test_layers_with_a_window_refuse_shared_prompts_and_work_as_rows() -> None:
    model = tiny_model("qwen3", use_sliding_window=True, sliding_window=3, max_window_layers=1)
    batch = ragged_batch()
    with pytest.raises(ConfigError, match="share_prompts=false"):
        completion_logprobs(model, batch)
    with torch.no_grad():
        values, _ = completion_logprobs(model, batch, share_prompts=False)
        expected, _ = row_by_row(model, batch, 1.0)
    torch.testing.assert_close(values.double(), expected, rtol=0, atol=1e-5)


def test_a_model_that_changes_its_logits_is_refused() -> None:
    model = tiny_model()
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(ConfigError, match="final_logit_softcapping"):
        completion_logprobs(model, ragged_batch())


class _Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor):
                self.numel = max(self.numel, value.numel())
        return result


def test_logits_of_all_tokens_never_exist_at_one_time() -> None:
    vocabulary = 20_000
    model = tiny_model(vocabulary=vocabulary)
    batch = ragged_batch(vocabulary=vocabulary, prompts=4, group=4, longest=16)
    with _Largest() as largest:
        logprobs, entropy = completion_logprobs(model, batch, chunk_tokens=16)
        (logprobs + entropy).sum().backward()
    # The weights themselves, or a chunk of logits, and not the 100 or more tokens of the batch.
    assert int(batch.completion_lengths.sum()) > 100
    assert largest.numel <= 32 * vocabulary


@pytest.mark.slow
def test_reading_prompts_once_saves_a_third_of_the_time() -> None:
    torch.set_num_threads(1)
    words = [f"w{i}" for i in range(440)]
    model, _ = ScratchModel().build(words, seed=0)
    rng = torch.Generator().manual_seed(0)
    batch = TokenBatch(
        prompt_ids=torch.randint(3, 440, (24, 50), generator=rng),
        prompt_lengths=torch.full((24,), 50),
        completion_ids=torch.randint(3, 440, (192, 48), generator=rng),
        completion_lengths=torch.randint(12, 49, (192,), generator=rng),
        prompt_index=torch.arange(24).repeat_interleave(8),
    )

    def seconds(share: bool) -> float:
        start = time.process_time()
        completion_logprobs(model, batch, share_prompts=share)[0].sum().backward()
        return time.process_time() - start

    seconds(True)
    pairs = [(seconds(True), seconds(False)) for _ in range(7)]  # in turn: load slows both
    shared, plain = map(min, zip(*pairs, strict=True))
    assert shared <= 2 / 3 * plain


def test_a_warm_up_with_gradient_checkpointing_has_the_same_loss_and_gradients() -> None:
    found = []
    for is_checkpointing in (False, True):
        model = tiny_model(dtype=torch.float64, is_exact=True).train()
        if is_checkpointing:
            model.gradient_checkpointing_enable()
        loss = demonstration_loss(model, ragged_batch())
        loss.backward()
        found.append([loss.detach(), *gradients(model)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
