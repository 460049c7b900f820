"""Keeps what starting vLLM changes in a process from the rest of the program."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def preserved_process_state() -> Iterator[None]:
    """Puts back the environment, random generators, torch's threads and the CPUs of the process.

    An engine in the training process preloads libraries into child processes, names itself the only
    process of its node (LOCAL_WORLD_SIZE), seeds all generators, and replaces
    `torch.set_num_threads` by a function that does nothing.
    """
    environment = dict(os.environ)
    states = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    set_num_threads, threads = torch.set_num_threads, torch.get_num_threads()
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        yield
    finally:
        _restore_environment(environment)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.random.set_rng_state(states[2])
        if on_devices:
            torch.cuda.set_rng_state_all(on_devices)
        torch.set_num_threads = set_num_threads
        torch.set_num_threads(threads)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)


def _restore_environment(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
