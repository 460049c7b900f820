from __future__ import annotations

import os
import random

import numpy as np
import torch

from vpo_lightning.rollout.process_state import preserved_process_state


def test_what_an_engine_changes_in_its_process_is_put_back() -> None:
    environment, cpus = dict(os.environ), os.sched_getaffinity(0)
    threads, set_num_threads = torch.get_num_threads(), torch.set_num_threads
    generators = random.getstate(), torch.get_rng_state()
    drawn = np.random.get_state()[1].tolist()  # pyright: ignore
    with preserved_process_state():
        os.environ.update({"LD_PRELOAD": "lib.so", "LOCAL_WORLD_SIZE": "1"})
        os.environ.pop("PATH", None)
        os.sched_setaffinity(0, {min(cpus)})
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        torch.set_num_threads(threads + 1)
        torch.set_num_threads = lambda number: None
    assert dict(os.environ) == environment
    assert os.sched_getaffinity(0) == cpus
    assert torch.set_num_threads is set_num_threads
    assert torch.get_num_threads() == threads
    assert random.getstate() == generators[0]
    assert torch.equal(torch.get_rng_state(), generators[1])
    assert np.random.get_state()[1].tolist() == drawn  # pyright: ignore
