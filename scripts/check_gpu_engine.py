"""Checks vLLM on a machine with NVIDIA GPUs: `.venv/bin/python scripts/check_gpu_engine.py`.

The engine in the process, a server, and training. A model of the shape of Qwen3-0.6B with random
weights is made in a temporary folder; nothing is downloaded. Sized for six minutes on one GPU.
``--device cpu --layers 2`` runs the same checks there.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from vpo_lightning.core.types import TokenBatch
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.policy.loading import load_model, save_model_folder
from vpo_lightning.rollout.canary import Canary
from vpo_lightning.rollout.engine import (
    Completion,
    GenerationRequest,
    RolloutEngine,
    SamplingSettings,
)
from vpo_lightning.rollout.handover import HandoverSettings
from vpo_lightning.rollout.vllm_engine import VLLMEngine
from vpo_lightning.rollout.vllm_server import VLLMServerEngine
from vpo_lightning.rollout.vllm_server_nccl import free_port

SERVE = Path(__file__).with_name("serve_rollouts.py")
POSITIONS = 4096
PROMPT = [3 + i % 200 for i in range(300)]
FAILURES: list[str] = []


def main() -> None:
    """Runs all checks; the exit status is 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--layers", type=int, default=28, help="28 is the shape of Qwen3-0.6B")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        sys.exit("check: no CUDA device here; pass --device cpu --layers 2 to try the script")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model = save_random_model(Path(folder) / "model", arguments.layers)
        for dtype in arguments.dtypes:
            check_engine(model, dtype, arguments.device)
        check_server(model, arguments.device)
        check_training(Path(folder))
    print(f"{time.perf_counter() - start:.0f} s, {len(FAILURES)} failed: {', '.join(FAILURES)}")
    sys.exit(bool(FAILURES))


def save_random_model(folder: Path, layers: int) -> Path:
    """A tied Qwen3 model with a byte-level tokenizer, smaller than its vocabulary."""
    config = Qwen3Config(
        vocab_size=151936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        eos_token_id=1,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=[1, 2])
    characters = ["<pad>", "<eos>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend: Any = Tokenizer(models.BPE({c: i for i, c in enumerate(characters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>"
    )
    return save_model_folder(model, tokenizer, folder)


def check_engine(folder: Path, dtype: str, device: str) -> None:
    """Hand-over, canary, seeds, stale states and speed of one engine."""
    model: Any = load_model(folder, dtype, "sdpa")
    model.to(device)
    start = time.perf_counter()
    engine = VLLMEngine(folder, dtype=dtype, device=device, max_model_len=POSITIONS, sleep=True)
    print(f"{dtype}: started in {time.perf_counter() - start:.1f} s")
    compare(engine, model, f"{dtype}: canary of the start policy")
    request = GenerationRequest("seeds", PROMPT, list(range(8)))
    first = engine.generate([request], SamplingSettings(32))[0]
    again = engine.generate([request], SamplingSettings(32))[0]
    report(f"{dtype}: seeds differ", len({tuple(c.ids) for c in first}) == 8)
    if dtype == "float32":  # elsewhere rounding depends on the batch
        report("float32: seeds repeat", [c.ids for c in first] == [c.ids for c in again])
        report("float32: greedy tokens", greedy(engine, request) == greedy_of(model, device))
    change(model)
    start = time.perf_counter()
    engine.load_weights(model.named_parameters(), 1)  # without the tied head, which must follow
    print(f"{dtype}: hand-over in {time.perf_counter() - start:.2f} s")
    compare(engine, model, f"{dtype}: canary after a hand-over")
    measure(engine, dtype)
    engine.close()


def compare(engine: RolloutEngine, model: Any, what: str) -> None:
    """Reports whether engine and policy give the same tokens the same probabilities."""
    dtype = str(model.dtype).removeprefix("torch.")
    limit = HandoverSettings().limits(dtype)[0]

    @torch.no_grad()
    def logprobs(tokens: TokenBatch) -> torch.Tensor:
        moved = TokenBatch(**{name: ids.to(model.device) for name, ids in vars(tokens).items()})
        return completion_logprobs(model, moved)[0]

    found = Canary(PROMPT, engine.positions, temperature=1.0).mismatch(engine, logprobs)
    report(what, found < limit, f"{found:.2g} nats, limit {limit:g}")


@torch.no_grad()
def change(model: Any) -> None:
    """Gives the policy other weights."""
    for weight in model.parameters():
        weight += 0.02 * torch.randn_like(weight)


def greedy(engine: VLLMEngine, request: GenerationRequest) -> list[int]:
    """The engine's most probable continuation, 16 tokens."""
    one = GenerationRequest("greedy", request.prompt_ids, [0])
    completions: Sequence[Completion] = engine.generate([one], SamplingSettings(16, 0.0))[0]
    return completions[0].ids


@torch.no_grad()
def greedy_of(model: Any, device: str) -> list[int]:
    """The policy's most probable continuation, 16 tokens, read anew for each of them."""
    ids = list(PROMPT)
    while len(ids) < len(PROMPT) + 16 and (len(ids) == len(PROMPT) or ids[-1] not in (1, 2)):
        ids.append(int(model(torch.tensor([ids], device=device)).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


def measure(engine: VLLMEngine, dtype: str) -> None:
    """Prints tokens per second, and the GPU's memory while the engine sleeps."""
    requests = [GenerationRequest(str(i), [5 + i, *PROMPT], list(range(8))) for i in range(8)]
    start = time.perf_counter()
    groups = engine.generate(requests, SamplingSettings(64))
    tokens = sum(len(c.ids) for group in groups for c in group)
    print(f"{dtype}: {tokens / (time.perf_counter() - start):.0f} tokens/s with 64 rows")
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        print(f"{dtype}: {(total - free) / 2**30:.1f} GiB in use while the engine sleeps")


def check_server(folder: Path, device: str) -> None:
    """A server beside this process: canary, hand-over, and a kill while it samples."""
    port = free_port("127.0.0.1")
    command = [sys.executable, str(SERVE), str(folder), "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", "1024", "--gpus-per-server", "1" if device == "cuda" else "0"]
    further = ["--enforce-eager"]
    if device == "cuda":
        further += ["--gpu-memory-utilization", "0.4"]
    with (
        (folder / "server.log").open("wb") as log,
        subprocess.Popen([*command, "--", *further], stdout=log, stderr=log) as script,
    ):
        try:
            check_served(folder, device, f"http://127.0.0.1:{port}", script.pid)
        finally:
            script.terminate()


def check_served(folder: Path, device: str, url: str, script: int) -> None:
    """The checks of a server that the process `script` is starting."""
    model: Any = load_model(folder, "float32", "sdpa")
    model.to(device)
    start = time.perf_counter()
    engine = VLLMServerEngine(folder, device=device, urls=[url])
    print(f"server: started in {time.perf_counter() - start:.1f} s")
    compare(engine, model, "server: canary of the start policy")
    change(model)
    engine.load_weights(model.named_parameters(), 1)
    compare(engine, model, "server: canary after a hand-over")
    requests = [GenerationRequest(str(i), [5 + i, *PROMPT], list(range(8))) for i in range(4)]
    expected = engine.generate(requests, SamplingSettings(128))
    with ThreadPoolExecutor() as pool:
        disturbed = pool.submit(engine.generate, requests, SamplingSettings(128))
        time.sleep(0.5)
        server = Path(f"/proc/{script}/task/{script}/children").read_text().split()[0]
        os.kill(int(server), signal.SIGKILL)
        again = disturbed.result()
    same = [[c.ids for c in row] for row in again] == [[c.ids for c in row] for row in expected]
    report("server: killed while it samples, the same tokens", same)
    engine.close()


def check_training(folder: Path) -> None:
    """Three training steps on mazes, in one process and, with two GPUs, in two."""
    runs: dict[str, list[str]] = {"one process": []}
    if torch.cuda.device_count() > 1:
        runs["two processes"] = ["strategy=ddp", "strategy.devices=2"]
        runs["two processes, sharded"] = ["strategy=fsdp", "strategy.devices=2"]
        runs["one engine for two"] = [*runs["two processes"], "engine.tensor_parallel_size=2"]
    for name, overrides in runs.items():
        place = folder / name.replace(",", "").replace(" ", "_")
        settings = ["experiment=smoke", "engine=vllm", "engine.enforce_eager=true"]
        command = [sys.executable, "-m", "vpo_lightning.train", *settings, *overrides]
        done = subprocess.run(
            [*command, f"hydra.run.dir={place}", f"cache_dir={folder / 'cache'}"],
            capture_output=True,
            text=True,
        )
        report(
            f"training in {name}",
            done.returncode == 0,
            "" if done.returncode == 0 else done.stderr[-2000:],
        )


def report(what: str, is_right: bool, details: str = "") -> None:
    """Prints one result."""
    print(f"{'ok  ' if is_right else 'FAIL'} {what} {details}", flush=True)
    if not is_right:
        FAILURES.append(what)


if __name__ == "__main__":
    main()
