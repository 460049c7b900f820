"""Whole runs with vLLM in the training process, in one process and in two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from tests.conftest import SMALL
from tests.runs.records import metrics, sampled_ids
from vpo_lightning.launch import write_config

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
WORKER = Path(__file__).with_name("recorded_worker.py")
SMOLLM2 = Path("~/.cache/vpo-lightning/models/smollm2_135m").expanduser()
# Rounding of float32 sums in another order; measured up to 1e-5.
ROUNDING = 1e-4
SAME_GREEDY_TOKENS = """
import sys
from vpo_lightning.rollout.engine import GenerationRequest, SamplingSettings
from vpo_lightning.rollout.hf_engine import HFEngine
from vpo_lightning.rollout.store import read_rollouts
from vpo_lightning.rollout.vllm_engine import VLLMEngine
from pathlib import Path
rows = read_rollouts(Path(sys.argv[2]))
records = {r["prompt_id"]: r["prompt_ids"] for r in rows if r["prompt_ids"]}
requests = [GenerationRequest(name, ids, [0]) for name, ids in records.items()]
greedy = SamplingSettings(60, temperature=0.0)
ours, theirs = (e(sys.argv[1]).generate(requests, greedy) for e in (VLLMEngine, HFEngine))
print(len(requests), [[c.ids for c in g] for g in ours] == [[c.ids for c in g] for g in theirs])
"""


@pytest.mark.timeout(1800)
def test_vllm_and_hf_train_to_the_same_reward(
    train_command: Callable[..., list[str]], tmp_path: Path
) -> None:
    settings = (
        "warmup.steps=200",
        "rollout.prompts_per_step=12",
        "trainer.max_steps=20",
        "trainer.validate_every=0",
        "evaluation.num_prompts=0",
    )
    rewards: dict[str, float] = {}
    for engine in ("hf", "vllm"):
        last: list[float] = []
        for seed in range(3):
            folder = tmp_path / f"{engine}_{seed}"
            chosen = (f"hydra.run.dir={folder}", f"engine={engine}", f"seed={seed}")
            command = train_command(*chosen, *settings, small=False)
            # Longer than other runs: the first one trains the warm-up too.
            run = subprocess.run(command, capture_output=True, text=True, timeout=900)
            assert run.returncode == 0, run.stderr
            steps = metrics(folder)
            assert max(step["rollout/logprob_mismatch"] for step in steps) < ROUNDING
            last += [step["rollout/set_reward"] for step in steps[-5:]]
        rewards[engine] = sum(last) / len(last)
    assert rewards["vllm"] == pytest.approx(rewards["hf"], abs=0.05)
    start = json.loads((tmp_path / "hf_0" / "summary.json").read_text())["start_policy"]
    compared = subprocess.run(
        [sys.executable, "-c", SAME_GREEDY_TOKENS, start, str(tmp_path / "hf_0" / "rollouts")],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert compared.stdout.split() == ["240", "True"], compared.stderr


@pytest.fixture
def torchrun(tmp_path: Path, warmup_cache: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Trains in two processes whose engines are written down."""

    def run(*overrides: str, arguments: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        processes = ("strategy.devices=2", "strategy.accelerator=cpu", f"cache_dir={warmup_cache}")
        with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
            cfg = compose("train", [*SMALL, *processes, "name=two", *overrides])
        write_config(cfg, tmp_path / "run")
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return subprocess.run(
            [sys.executable, *command, str(WORKER), str(tmp_path / "run"), *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=280,
        )

    return run


@pytest.fixture
def leftover() -> Iterator[None]:
    """The memory that processes with one vLLM engine leave behind if they are killed."""
    path = Path("/dev/shm/-tp:0-[0-1]-cpushm_0")
    path.touch()
    yield
    path.unlink(missing_ok=True)


@pytest.mark.usefixtures("leftover")
@pytest.mark.parametrize(
    "settings",
    [
        ("strategy=ddp",),
        ("strategy=fsdp",),
        ("strategy=ddp", "engine.tensor_parallel_size=2"),
    ],
    ids=["ddp", "fsdp", "one engine for both"],
)
def test_two_processes_hold_the_same_weights_in_policies_and_engines(
    torchrun: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    settings: tuple[str, ...],
) -> None:
    run = torchrun("engine=vllm", "trainer.max_steps=5", *settings)
    assert run.returncode == 0, run.stderr
    folder = tmp_path / "run"
    ranks = [
        [json.loads(line) for line in (folder / f"rank_{rank}.jsonl").read_text().splitlines()]
        for rank in (0, 1)
    ]
    assert ranks[0] == ranks[1]
    assert [record["version"] for record in ranks[0]] == [1, 2, 3, 4, 5]
    assert len({record["weights"] for record in ranks[0]}) > 1
    assert max(step["rollout/logprob_mismatch"] for step in metrics(folder)) < ROUNDING
    prompts: list[set[tuple[int, str]]] = []
    for rank in (0, 1):
        share = tmp_path / f"share_{rank}"
        (share / "rollouts").mkdir(parents=True)
        for file in (folder / "rollouts").glob(f"*_rank_{rank}.parquet"):
            file.rename(share / "rollouts" / file.name)
        ids = sampled_ids(share)
        assert len(ids) == 5 * 2 * 4  # steps, prompts of a process, rollouts
        prompts.append({(step, prompt) for step, prompt, _ in ids})
    assert not prompts[0] & prompts[1]


def test_an_engine_built_before_the_group_of_processes_is_an_error(
    torchrun: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    # It would make a group of its own in each process: two runs that report success.
    run = torchrun("engine=vllm", "strategy=ddp", "trainer.max_steps=1", arguments=("early",))
    assert run.returncode != 0
    assert "build it in on_fit_start" in run.stderr
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.timeout(1200)  # on a machine that others use too
def test_smollm2_takes_vpo_steps_with_adapters_and_an_engine_in_bfloat16(
    train_command: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert SMOLLM2.is_dir(), "SmolLM2 is missing; run python scripts/get_smollm2.py"
    folder = tmp_path / "run"
    settings = ("task=maze", "experiment=maze_smoke", "engine=vllm", f"hydra.run.dir={folder}")
    length = ("trainer.max_steps=3", "evaluation.num_prompts=0", "report_rollouts=null")
    # Its first routes all miss the exit; their lengths differ, which is what it learns from here.
    length = (*length, "rollout.soft_overlong_tokens=80")
    run = subprocess.run(
        train_command(*settings, *length, small=False),
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert run.returncode == 0, run.stderr
    config = OmegaConf.load(folder / "config.yaml")
    assert (config.model.dtype, config.model.lora.rank) == ("bfloat16", 8)
    steps = metrics(folder)
    assert len(steps) == 3
    assert max(step["train/grad_norm"] for step in steps) > 0  # merged weights that have moved
    mismatches = [step["rollout/logprob_mismatch"] for step in steps]
    assert all(0 < mismatch < 1 for mismatch in mismatches)  # .35 measured
    peak = json.loads((folder / "summary.json").read_text())["cost"]["process_mib"]
    print(f"SmolLM2 in bfloat16 with adapters: {max(mismatches):.3f} nats, {peak:.0f} MiB")
    assert peak < 8 * 1024
