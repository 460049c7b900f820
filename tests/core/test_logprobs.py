"""Log-probabilities in chunks: values, gradients, precision and memory."""

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from vpo_lightning.core import logprobs as module
from vpo_lightning.core.logprobs import (
    logprobs_and_entropy,
    logprobs_from_hidden,
    sampled_logprobs,
    token_entropy,
)


def plain(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    logs = (logits / temperature).log_softmax(-1)
    entropy = torch.distributions.Categorical(logits=logits / temperature).entropy()
    return logs.gather(-1, ids[..., None]).squeeze(-1), entropy


def example(rows: int = 5, size: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, rows, size, dtype=torch.float64, generator=generator)
    return logits, torch.randint(size, (2, rows), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("block", [1, 15, 1 << 20])
def test_values_and_gradients_are_those_of_log_softmax(
    temperature: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", block)
    logits, ids = example()
    weights = torch.randn(2, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    results: list[tuple[Tensor, ...]] = []
    for function in (logprobs_and_entropy, plain):
        leaf = logits.clone().requires_grad_()
        values, entropy = function(leaf, ids, temperature)
        (values * weights[0] + entropy * weights[1]).sum().backward()
        assert leaf.grad is not None
        results.append((values.detach(), entropy.detach(), leaf.grad))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_the_parts_are_those_of_the_pair() -> None:
    logits, ids = example()
    values, entropy = logprobs_and_entropy(logits, ids, 0.7)
    assert torch.equal(sampled_logprobs(logits, ids, 0.7), values)
    assert torch.equal(token_entropy(logits, 0.7), entropy)
    assert token_entropy(torch.zeros(1, 8))[0] == pytest.approx(math.log(8))


def test_tokens_that_cannot_be_sampled_have_no_part() -> None:
    logits, _ = example()
    logits[..., 3:] = -math.inf
    ids = torch.zeros(2, 5, dtype=torch.int64)
    leaf = logits.clone().requires_grad_()
    values, entropy = logprobs_and_entropy(leaf, ids)
    expected = plain(logits[..., :3], ids)
    torch.testing.assert_close(values, expected[0])
    torch.testing.assert_close(entropy, expected[1])
    (values + entropy).sum().backward()
    assert leaf.grad is not None
    assert bool(torch.isfinite(leaf.grad).all())
    assert not bool(leaf.grad[..., 3:].any())
    assert bool(torch.isinf(sampled_logprobs(logits, ids + 4)).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_logits_are_reduced_in_float32(dtype: torch.dtype) -> None:
    logits, ids = example(size=500)
    values = sampled_logprobs(logits.to(dtype), ids)
    assert values.dtype == torch.float32
    expected = plain(logits.to(dtype).double(), ids)[0]
    torch.testing.assert_close(values.double(), expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 4, 1000])
@pytest.mark.parametrize("masked", [False, True])
def test_chunks_from_hidden_states_are_exact(chunk_tokens: int, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 5, 6, dtype=torch.float64, generator=generator)
    weight = torch.randn(11, 6, dtype=torch.float64, generator=generator)
    ids = torch.randint(11, (2, 5), generator=generator)
    mask = torch.rand(2, 5, generator=generator) < 0.6 if masked else None
    kept = torch.ones(2, 5, dtype=torch.bool) if mask is None else mask

    def gradients(chunked: bool) -> list[Tensor]:
        states, head = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        if chunked:
            values, entropy = logprobs_from_hidden(
                states, head, ids, mask, temperature=0.8, chunk_tokens=chunk_tokens
            )
            assert not bool(values[~kept].any())
        else:
            values, entropy = plain(states @ head.T, ids, 0.8)
        loss = (values[kept] * torch.arange(int(kept.sum()))).sum() + entropy[kept].sum()
        loss.backward()
        assert states.grad is not None
        assert head.grad is not None
        return [values[kept].detach(), entropy[kept].detach(), states.grad, head.grad]

    for found, expected in zip(gradients(True), gradients(False), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_head_may_be_a_module() -> None:
    head = nn.Linear(6, 11)
    hidden, ids = torch.randn(4, 6), torch.randint(11, (4,))
    found = logprobs_from_hidden(hidden, head, ids, chunk_tokens=3)
    for value, expected in zip(found, plain(head(hidden), ids), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    found[0].sum().backward()
    assert head.bias.grad is not None
    with torch.no_grad():
        torch.testing.assert_close(logprobs_from_hidden(hidden, head, ids)[0], found[0].detach())


def test_no_position_in_the_mask_is_no_error() -> None:
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    values, entropy = logprobs_from_hidden(
        hidden, torch.randn(5, 4), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3).bool()
    )
    assert not bool(values.any() or entropy.any())
    values.sum().backward()
    assert hidden.grad is not None
    assert not bool(hidden.grad.any())


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    logits, ids = example()
    with pytest.raises(ValueError, match=r"engine\.temperature"):
        sampled_logprobs(logits, ids, temperature)


def test_chunks_must_hold_a_token() -> None:
    with pytest.raises(ValueError, match=r"model\.chunk_tokens"):
        logprobs_from_hidden(
            torch.zeros(1, 2), torch.zeros(3, 2), torch.tensor([0]), chunk_tokens=0
        )


MEASURE = """
import resource, torch
from vpo_lightning.core.logprobs import logprobs_from_hidden
torch.set_num_threads(1)
tokens, width, vocabulary = 256, 8, 150_000
hidden = torch.randn(tokens, width, requires_grad=True)
weight = torch.randn(vocabulary, width, requires_grad=True)
ids = torch.randint(vocabulary, (tokens,))
# The first call loads the math libraries' own buffers.
logprobs_from_hidden(hidden[:1], weight, ids[:1])[0].sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
values, _ = logprobs_from_hidden(hidden, weight, ids, chunk_tokens=16)
values.sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_peak_memory_is_that_of_a_chunk() -> None:
    # In a process of its own: the peak of this one may lie behind it.
    run = subprocess.run(
        [sys.executable, "-c", MEASURE],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        # Freed blocks go back to the system, so that the peak is of what is in use.
        env={"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"},
    )
    grown, whole = float(run.stdout), 256 * 150_000 * 4 / 2**20
    # All logits in float32 would be 146 MiB once, a chunk is 9 MiB.
    assert grown < whole / 3, f"{grown:.0f} MiB"
