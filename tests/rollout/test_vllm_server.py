"""The engine with a real vLLM server on loopback, the CPU build."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.rollout.vllm_servers import ServerScript, changed
from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import StopRule
from vpo_lightning.policy.loading import load_model
from vpo_lightning.rollout.engine import Completion, GenerationRequest, SamplingSettings
from vpo_lightning.rollout.vllm_server import VLLMServerEngine
from vpo_lightning.rollout.vllm_server_files import WeightFile
from vpo_lightning.rollout.vllm_server_http import RolloutServer
from vpo_lightning.rollout.vllm_server_transfer import FileTransfer

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
pytest.importorskip("vllm")

SAMPLING = SamplingSettings(max_tokens=24)
Outcome = list[tuple[list[int], str]]


@pytest.fixture
def engine(server: ServerScript, server_model: Path) -> Iterator[VLLMServerEngine]:
    made = VLLMServerEngine(server_model, urls=[server.url], handover_timeout=30.0)
    yield made
    made.close()


@pytest.fixture
def policy(server_model: Path) -> Any:
    return load_model(server_model, "float32", "sdpa")


def requests(count: int = 3, group: int = 4, length: int = 20) -> list[GenerationRequest]:
    rng = torch.Generator().manual_seed(length)
    prompts = torch.randint(3, 200, (count, length), generator=rng).tolist()
    return [
        GenerationRequest(f"p{i}", prompt, [2**62 + 100 * i + j for j in range(group)])
        for i, prompt in enumerate(prompts)
    ]


def outcome(groups: list[list[Completion]]) -> Outcome:
    return [(c.ids, c.finish_reason) for group in groups for c in group]


def mismatch(
    model: Any, asked: list[GenerationRequest], groups: list[list[Completion]], temperature: float
) -> float:
    """The largest difference between the engine's log-probabilities and a forward pass's."""
    worst = 0.0
    for request, group in zip(asked, groups, strict=True):
        start = len(request.prompt_ids) - 1
        for completion in group:
            ids = torch.tensor([[*request.prompt_ids, *completion.ids]])
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0, start:-1]
            chances = (logits.double() / temperature).log_softmax(-1)
            expected = chances.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
            worst = max(worst, float((expected - torch.tensor(completion.logprobs)).abs().max()))
    return worst


def test_logprobs_are_the_policys_before_and_after_a_hand_over(
    engine: VLLMServerEngine, policy: Any
) -> None:
    # Long prompts, which the prefix cache keeps; a tied head, of which vLLM packs a copy.
    asked = requests(length=160)
    old = engine.generate(asked, SAMPLING)
    assert mismatch(policy, asked, old, 1.0) < 1e-4
    engine.load_weights(changed(policy, 1).items(), 1)
    new = engine.generate(asked, dataclasses.replace(SAMPLING, temperature=0.7))
    assert engine.version == 1
    assert mismatch(policy, asked, new, 0.7) < 1e-4
    assert outcome(new) != outcome(old)


def test_more_prompts_than_the_server_reads_at_a_time_keep_their_seeds(
    engine: VLLMServerEngine, policy: Any
) -> None:
    # vLLM's CPU build dies when it cuts the prompt of a request with a seed.
    asked = requests(count=30, group=2, length=190)
    groups = engine.generate(asked, SAMPLING)
    assert mismatch(policy, asked, groups, 1.0) < 1e-4
    assert outcome(engine.generate(asked[7:8], SAMPLING)) == outcome(groups[7:8])


def test_a_completion_depends_on_its_seed_and_prompt_alone(engine: VLLMServerEngine) -> None:
    asked, hot = requests(), dataclasses.replace(SAMPLING, temperature=2.0)
    whole = engine.generate(asked, hot)
    assert len({tuple(ids) for ids, _ in outcome(whole)}) == 12
    [again] = engine.generate([dataclasses.replace(asked[1], seeds=asked[1].seeds[::-1])], hot)
    assert [c.ids for c in again] == [c.ids for c in whole[1]][::-1]
    greedy = SamplingSettings(max_tokens=8, temperature=0.0)
    [one] = engine.generate(asked[:1], greedy)
    assert len({tuple(c.ids) for c in one}) == 1


@pytest.mark.parametrize("rule", [StopRule("r1", 3), StopRule(" r1", 2), StopRule("c4")])
def test_a_completion_ends_at_the_nth_occurrence(engine: VLLMServerEngine, rule: StopRule) -> None:
    asked = requests()
    long = SamplingSettings(max_tokens=64)
    free = engine.generate(asked, long)
    ruled = engine.generate([dataclasses.replace(r, stop=rule) for r in asked], long)
    reasons = set()
    for a, b in zip(outcome(free), [c for group in ruled for c in group], strict=True):
        reasons.add(b.finish_reason)
        assert a[0][: len(b.ids)] == b.ids
        if b.finish_reason == "stop":
            assert b.text.count(rule.text) >= rule.count
            shorter = engine._tokenizer.decode(b.ids[:-1])
            assert str(shorter).count(rule.text) < rule.count
        else:
            assert a == (b.ids, b.finish_reason)
            assert b.text.count(rule.text) < rule.count
    assert "stop" in reasons


def test_a_server_stops_computing_where_the_rule_is_met(
    engine: VLLMServerEngine, server: ServerScript
) -> None:
    asked = [dataclasses.replace(r, stop=StopRule("r1")) for r in requests()]
    before = generated_tokens(server)
    groups = engine.generate(asked, SamplingSettings(max_tokens=300))
    kept = sum(len(ids) for ids, _ in outcome(groups))
    # The token that ends a completion in the server is cut off.
    assert generated_tokens(server) - before <= kept + 12


def generated_tokens(server: ServerScript) -> float:
    lines = httpx.get(f"{server.url}/metrics", trust_env=False).text.splitlines()
    [line] = [x for x in lines if x.startswith("vllm:generation_tokens_total")]
    return float(line.split()[-1])


def test_restricted_support_is_that_of_the_logprobs(engine: VLLMServerEngine, policy: Any) -> None:
    from vpo_lightning.core.support import kept_tokens

    asked = requests(count=1)
    settings = SamplingSettings(max_tokens=6, top_p=0.8, top_k=30, min_p=0.02)
    [group] = engine.generate(asked, settings)
    for completion in group:
        ids = torch.tensor([[*asked[0].prompt_ids, *completion.ids]])
        with torch.no_grad():
            logits = policy(input_ids=ids).logits[0, len(asked[0].prompt_ids) - 1 : -1]
        kept = kept_tokens(logits, temperature=1.0, top_k=30, top_p=0.8, min_p=0.02)
        chances = logits.masked_fill(~kept, -torch.inf).log_softmax(-1)
        expected = chances.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
        assert torch.allclose(expected, torch.tensor(completion.logprobs), atol=1e-4)


def test_a_server_with_other_weights_is_given_the_current_ones_before_it_counts(
    engine: VLLMServerEngine, server: ServerScript, policy: Any, capfd: Any
) -> None:
    engine.load_weights(changed(policy, 2).items(), 5)
    asked = requests()
    expected = outcome(engine.generate(asked, SAMPLING))
    # As a restarted server says, or one that another run took.
    httpx.post(f"{server.url}/update_weight_version", json={"new_version": "default"})
    assert outcome(engine.generate(asked, SAMPLING)) == expected
    assert "it has weights default, not 5-" in capfd.readouterr().out


def test_a_completion_that_the_server_would_shorten_is_refused(engine: VLLMServerEngine) -> None:
    with pytest.raises(ConfigError, match=r"exceed 400 positions.*--max-model-len"):
        engine.generate(requests(count=1, group=1, length=390), SAMPLING)


def test_a_request_that_the_server_refuses_is_an_error_with_its_text(
    engine: VLLMServerEngine,
) -> None:
    engine.positions = 1000
    with pytest.raises(ConfigError, match="longer than the maximum model length"):
        engine.generate(requests(count=1, group=1, length=420), SAMPLING)


def test_settings_that_the_server_was_not_started_with_are_refused(
    server: ServerScript, server_model: Path
) -> None:
    with pytest.raises(ConfigError, match=r"dtype=float32, the training needs bfloat16"):
        VLLMServerEngine(server_model, urls=[server.url], dtype="bfloat16")


class StoppingTransfer(FileTransfer):
    """Stops the server's engine process in the middle of a hand-over."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    async def send(self, server: RolloutServer, file: WeightFile) -> None:
        os.kill(self._pid, signal.SIGSTOP)
        await super().send(server, file)


def test_a_hand_over_that_hangs_is_an_error_within_the_limit_and_the_next_one_works(
    engine: VLLMServerEngine, server: ServerScript, policy: Any
) -> None:
    pool, core = engine._pool, server.engine_core()
    pool._patience = dataclasses.replace(pool._patience, handover=3.0)
    pool._transfer = StoppingTransfer(core)
    start = time.monotonic()
    try:
        with pytest.raises(RuntimeError, match=r"did not take part 1 of 1 within .*=3 seconds"):
            engine.load_weights(changed(policy, 3).items(), 1)
        assert time.monotonic() - start < 10
        with pytest.raises(RuntimeError, match="the last load_weights failed"):
            engine.generate(requests(), SAMPLING)
    finally:
        os.kill(core, signal.SIGCONT)
    pool._patience = dataclasses.replace(pool._patience, handover=30.0)
    pool._transfer = FileTransfer()
    engine.load_weights(changed(policy, 4).items(), 2)
    asked = requests()
    assert mismatch(policy, asked, engine.generate(asked, SAMPLING), 1.0) < 1e-4


class BreakingTransfer(FileTransfer):
    """Sends a part of a layer's weights, and breaks off."""

    async def send(self, server: RolloutServer, file: WeightFile) -> None:
        [first] = [i for i, name in enumerate(file.names) if name.endswith("0.mlp.up_proj.weight")]
        await super().send(server, dataclasses.replace(file, names=file.names[:first]))
        await super().send(server, dataclasses.replace(file, path=file.path / "gone"))


def test_weights_that_came_in_part_are_forgotten(engine: VLLMServerEngine, policy: Any) -> None:
    engine._pool._transfer = BreakingTransfer()
    with pytest.raises(RuntimeError, match=r"did not take part 1 of 1: .*status 500"):
        engine.load_weights(changed(policy, 6).items(), 1)
    engine._pool._transfer = FileTransfer()
    engine.load_weights(changed(policy, 7).items(), 2)
    asked = requests()
    assert mismatch(policy, asked, engine.generate(asked, SAMPLING), 1.0) < 1e-4


@pytest.mark.timeout(400)
def test_a_server_killed_in_the_middle_of_a_step_returns_and_nothing_changes(
    engine: VLLMServerEngine, server: ServerScript, policy: Any, capfd: Any
) -> None:
    engine.load_weights(changed(policy, 5).items(), 7)
    asked, long = requests(count=6, group=8), SamplingSettings(max_tokens=300)
    expected = outcome(engine.generate(asked, long))
    got: list[Any] = []
    step = threading.Thread(target=lambda: got.extend(engine.generate(asked, long)))
    step.start()
    while not engine._pool.servers[0].load:
        time.sleep(0.01)
    time.sleep(0.3)
    server.kill()
    step.join(300)
    assert outcome(got) == expected
    said = capfd.readouterr().out
    assert "is lost for now" in said
    assert "is back and has the current weights" in said
