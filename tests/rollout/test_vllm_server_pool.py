"""Faults of servers: load is spread, requests are repeated or refused, every wait has an end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module
from safetensors.torch import load_file

from tests.rollout.fake_vllm import FakeServer
from vpo_lightning.engine_choice import check_engine
from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.loading import save_model_folder
from vpo_lightning.policy.scratch import ScratchModel, build_scratch_model
from vpo_lightning.rollout import vllm_server_files, vllm_server_pool
from vpo_lightning.rollout.engine import GenerationRequest, SamplingSettings
from vpo_lightning.rollout.vllm_server import VLLMServerEngine
from vpo_lightning.rollout.vllm_server_files import WeightFolder
from vpo_lightning.rollout.vllm_server_http import RolloutServer, ServerLostError
from vpo_lightning.rollout.vllm_server_nccl import NCCLTransfer, free_port, local_address
from vpo_lightning.rollout.vllm_server_pool import Patience, ServerPool
from vpo_lightning.rollout.vllm_server_transfer import FileTransfer

SAMPLING = SamplingSettings(max_tokens=8)
REQUESTS = [GenerationRequest(f"p{i}", [5 + i], [10 * i + j for j in range(4)]) for i in range(6)]
SEEDS = [seed for request in REQUESTS for seed in request.seeds]
Make = Callable[..., VLLMServerEngine]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model") / "policy"
    policy, tokenizer = build_scratch_model([f"w{i}" for i in range(97)], ScratchModel(), seed=0)
    return save_model_folder(policy, tokenizer, folder), policy


@pytest.fixture
def servers() -> Iterator[list[FakeServer]]:
    made = [FakeServer(), FakeServer()]
    yield made
    for server in made:
        server.stop()


@pytest.fixture
def make(
    model: Any, servers: list[FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Makes an engine on both servers."""
    monkeypatch.setattr(vllm_server_pool, "POLL_SECONDS", 0.05)
    made: list[VLLMServerEngine] = []

    def build(**settings: Any) -> VLLMServerEngine:
        settings = {"urls": [s.url for s in servers], "weights_dir": str(tmp_path), **settings}
        made.append(VLLMServerEngine(model[0], **settings))
        return made[-1]

    yield build
    for engine in made:
        engine.close()
    assert not list(tmp_path.glob("vpo-weights-*"))


def sampled_seeds(engine: VLLMServerEngine) -> list[int]:
    """The seeds that the completions say they were made from, in order."""
    groups = engine.generate(REQUESTS, SAMPLING)
    for request, group in zip(REQUESTS, groups, strict=True):
        assert all(c.ids[0] == request.prompt_ids[0] and c.finish_reason == "eos" for c in group)
    return [completion.ids[1] for group in groups for completion in group]


def test_prompts_are_spread_and_a_prompt_stays_on_one_server(
    make: Make, servers: list[FakeServer]
) -> None:
    assert sampled_seeds(make()) == SEEDS
    for server in servers:
        assert len(server.seeds) == 12
        prompts = {seed // 10 for seed in server.seeds}
        assert len(prompts) == 3


@pytest.mark.parametrize("fault", ["connection", "status", "other weights", "too slow"])
def test_a_lost_completion_is_asked_for_again_and_counted_once(
    make: Make, servers: list[FakeServer], fault: str
) -> None:
    engine, bad = make(request_timeout=0.5), servers[0]
    if fault == "connection":
        bad.drop = 3
    elif fault == "status":
        bad.fail["/inference/v1/generate"] = 500, "engine died"
    elif fault == "other weights":
        bad.version = "default"  # as a server that was started again
    else:
        bad.slow["/inference/v1/generate"] = 1.0
    assert sampled_seeds(engine) == SEEDS


def test_a_server_that_lost_its_weights_gets_them_again_before_it_counts(
    make: Make, servers: list[FakeServer]
) -> None:
    engine = make()
    servers[1].stop()
    servers[0].version = "default"
    pushes = servers[0].calls["/update_weights"]
    assert sampled_seeds(engine) == SEEDS
    assert servers[0].calls["/update_weights"] == pushes + 1
    assert servers[0].version.startswith("0-")


def test_a_server_that_returns_mid_step_gets_the_weights(
    make: Make, servers: list[FakeServer]
) -> None:
    engine = make()
    for server in servers:
        server.stop()
    returned: list[FakeServer] = []

    async def come_back() -> None:
        await asyncio.sleep(0.5)
        returned.append(FakeServer(servers[0].port))

    asyncio.run_coroutine_threadsafe(come_back(), engine._loop._loop)
    assert sampled_seeds(engine) == SEEDS
    assert sorted(returned[0].seeds) == SEEDS
    assert returned[0].calls["/update_weights"] == 1
    returned[0].stop()


def test_without_any_server_the_step_ends_within_the_limit(
    make: Make, servers: list[FakeServer]
) -> None:
    engine = make(server_timeout=0.5)
    for server in servers:
        server.stop()
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"engine.server_timeout=0.5 seconds: .*ConnectError"):
        sampled_seeds(engine)
    with pytest.raises(RuntimeError, match="no server can take new weights"):
        engine.load_weights(engine_weights(engine), 1)
    assert time.monotonic() - start < 5


def test_a_completion_that_is_always_lost_is_an_error(
    make: Make, servers: list[FakeServer]
) -> None:
    engine = make()
    for server in servers:
        server.fail["/inference/v1/generate"] = 500, "engine died"
    with pytest.raises(RuntimeError, match=r"lost 3 times \(engine.attempts\).*engine died"):
        sampled_seeds(engine)


def test_weights_that_have_diverged_are_named(make: Make, servers: list[FakeServer]) -> None:
    engine = make()
    for server in servers:
        server._completion = diverged  # type: ignore[method-assign]
    label = servers[0].version
    assert label == servers[1].version
    DIVERGED["weight_versions"] = [{"version": label, "start": 0, "end": 1}]
    with pytest.raises(FloatingPointError, match="have diverged"):
        sampled_seeds(engine)


DIVERGED: dict[str, Any] = {
    "finish_reason": "length",
    "token_ids": [5],
    "logprobs": {"content": [{"token_id": 5, "logprob": -9999.0}]},
}


def diverged(body: dict[str, Any]) -> dict[str, Any]:
    """A completion as vLLM gives it when the logits are not numbers."""
    del body
    return {"choices": [DIVERGED]}


@pytest.mark.parametrize(
    ("path", "phase"),
    [
        ("/start_weight_update", "start the update"),
        ("/update_weights", "take part 1 of 1"),
        ("/resume", "resume"),
    ],
)
def test_a_phase_that_fails_or_hangs_is_an_error_and_the_next_hand_over_works(
    make: Make, servers: list[FakeServer], path: str, phase: str
) -> None:
    engine = make(handover_timeout=1.0)
    weights = engine_weights(engine)
    servers[1].fail[path] = 500, "out of memory"
    with pytest.raises(RuntimeError, match=rf"did not {phase}: .*500: out of memory"):
        engine.load_weights(weights, 1)
    servers[1].fail.clear()
    servers[1].slow[path] = 2.0
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"did not {phase} within .*timeout=1 seconds"):
        engine.load_weights(weights, 1)
    assert time.monotonic() - start < 1.9
    with pytest.raises(RuntimeError, match="the last load_weights failed"):
        sampled_seeds(engine)
    servers[1].slow.clear()
    engine.load_weights(weights, 2)
    assert sampled_seeds(engine) == SEEDS
    assert {server.version for server in servers} == {servers[0].version}


def test_a_refused_cache_reset_is_an_error(make: Make, servers: list[FakeServer]) -> None:
    engine = make()
    weights = engine_weights(engine)
    content = servers[0]._content
    refusal = {"success": False}
    servers[0]._content = lambda path, body: (  # type: ignore[method-assign]
        refusal if path == "/reset_prefix_cache" else content(path, body)
    )
    with pytest.raises(RuntimeError, match=r"did not empty its prefix cache: .*refused"):
        engine.load_weights(weights, 1)


def test_an_update_that_was_left_open_is_ended_first(make: Make, servers: list[FakeServer]) -> None:
    engine = make()
    weights = engine_weights(engine)
    servers[0].fail["/start_weight_update"] = 500, "a weight update is already active"
    with pytest.raises(RuntimeError, match="already active"):
        engine.load_weights(weights, 1)
    assert servers[0].calls["/finish_weight_update"] == 2  # of the start, and before the second try


def test_a_server_away_at_a_hand_over_gets_the_weights_when_it_returns(
    make: Make, servers: list[FakeServer]
) -> None:
    engine = make()
    weights = engine_weights(engine)
    servers[1].stop()
    engine.load_weights(weights, 3)
    servers[1] = FakeServer(servers[1].port)
    deadline = time.monotonic() + 5
    while servers[1].version != servers[0].version and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sampled_seeds(engine) == SEEDS
    assert servers[1].seeds


def test_only_the_pusher_hands_over(servers: list[FakeServer]) -> None:
    async def ask() -> None:
        made = [RolloutServer(servers[0].url, connections=4, request_timeout=5.0)]
        patience = Patience(handover=1.0, server=0.3, attempts=2)
        pool = ServerPool(made, FileTransfer(), patience, is_pusher=False, first=3)
        await pool.use("1-of-another-process")
        try:
            await pool.sample([[{"token_ids": [5], "sampling_params": {"seed": 1}}]])
        except* ServerLostError as group:
            raise group.exceptions[0] from None
        finally:
            await pool.close()

    with pytest.raises(ServerLostError, match="it has weights default, not 1-of-another-process"):
        asyncio.run(ask())
    assert servers[0].calls["/pause"] == 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"urls": "http://a"}, "it must be a list"),
        ({"urls": ["http://a", "http://a"]}, "must be named once"),
        ({"attempts": 0}, "engine.attempts=0: it must be at least 1"),
        ({"urls": ["localhost:8000"]}, "is no address"),
        ({"transfer": "pigeon"}, "files or nccl"),
        ({"transfer": "nccl"}, "needs a GPU"),
        ({"weights_dir": "/nowhere"}, "engine.weights_dir=/nowhere"),
        ({"dtype": "float64"}, "vLLM computes in"),
        ({"dtype": "bfloat16"}, "dtype=float32, the training needs bfloat16"),
    ],
)
def test_settings_that_cannot_work_are_named(
    make: Make, settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        make(**settings)


def test_a_server_that_does_not_come_is_named(make: Make) -> None:
    with pytest.raises(ConfigError, match=r"no vLLM server answers at http://127.0.0.1:9 "):
        make(urls=["http://127.0.0.1:9"], server_timeout=0.2)


def test_wrong_weights_are_refused(make: Make) -> None:
    engine = make()
    weights = dict(engine_weights(engine))
    first = next(iter(weights))
    with pytest.raises(ValueError, match="did not come"):
        engine.load_weights(list(weights.items())[1:], 1)
    with pytest.raises(ValueError, match="has shape"):
        engine.load_weights({**weights, first: weights[first][:1]}.items(), 1)
    with pytest.raises(RuntimeError, match="the last load_weights failed"):
        sampled_seeds(engine)


def test_files_hold_each_weight_once_in_parts_of_the_given_size(tmp_path: Path) -> None:
    head = torch.arange(12.0).reshape(3, 4)
    weights = [("a", torch.ones(4, dtype=torch.bfloat16)), ("embed", head), ("head", head.T)]
    folder = WeightFolder(tmp_path, file_bytes=56)
    folder.write([("old", torch.zeros(100))])
    files = folder.write(weights)
    assert [file.names for file in files] == [["a", "embed"], ["head"]]
    assert files[0].dtypes == ["bfloat16", "float32"]
    assert files[1].shapes == [[4, 3]]
    stored = {k: v for file in files for k, v in load_file(file.path).items()}
    assert all(torch.equal(stored[name], tensor) for name, tensor in weights)
    assert len(list(folder.path.glob("*.safetensors"))) == 2
    folder.close()


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    living = WeightFolder(tmp_path)
    abandoned = tmp_path / "vpo-weights-gone"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    for folder in (living.path, abandoned):
        os.utime(folder, (0, 0))
    vllm_server_files.remove_abandoned(tmp_path)
    assert living.path.exists()
    assert not abandoned.exists()
    living.close()


def test_a_full_disk_is_an_error_after_all_weights_were_taken(tmp_path: Path) -> None:
    folder = WeightFolder(tmp_path, file_bytes=4)
    taken: list[int] = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for i in range(3):
            taken.append(i)
            yield f"w{i}", torch.ones(4)

    os.rename(folder.path, tmp_path / "away")  # writing fails as it does without room
    with pytest.raises(ConfigError, match="expected room for one copy of the model"):
        folder.write(weights())
    assert taken == [0, 1, 2]
    folder.close()


def test_the_address_for_nccl_is_the_one_the_servers_host_sees() -> None:
    assert local_address("http://127.0.0.1:8000") == "127.0.0.1"
    assert free_port("127.0.0.1") > 0
    with pytest.raises(ConfigError, match="which uses cpu"):
        NCCLTransfer("cpu")


def engine_weights(engine: VLLMServerEngine) -> list[tuple[str, torch.Tensor]]:
    """Weights of the model's shapes."""
    return [(name, torch.zeros(shape)) for name, shape in engine._expected._shapes.items()]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("engine.urls=[localhost:8000]", "is no address"),
        ("engine.handover_timeout=0", "engine.handover_timeout=0: it must be positive"),
        ("model.dtype=float64", "vLLM computes in"),
    ],
)
def test_a_wrong_config_is_refused_before_anything_is_loaded(override: str, expected: str) -> None:
    with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
        cfg = compose("train", ["engine=vllm_server", override])
    with pytest.raises(ConfigError, match=expected):
        check_engine(cfg)
