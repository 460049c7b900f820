"""The processes that train together, by name of the config group `strategy`."""

from __future__ import annotations

from lightning.pytorch.strategies import ModelParallelStrategy, Strategy

from vpo_lightning.errors import ConfigError

STRATEGIES = ("auto", "ddp", "fsdp")


def build_strategy(name: str, processes: int) -> Strategy | str:
    """Lightning's strategy of that name.

    ``fsdp`` is FSDP2 (Lightning's own "fsdp" is FSDP1, which refuses CPUs): the module shares the
    policy out in `configure_model`. Checkpoints hold the full weights and optimizer state, so that
    a run resumes with any number of processes.

    Args:
        name: ``auto``, ``ddp`` or ``fsdp``.
        processes: That train together, over all nodes.

    Raises:
        ConfigError: An unknown name.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"strategy.strategy={name}: it must be one of {', '.join(STRATEGIES)}")
    if name != "fsdp":
        return name
    return ModelParallelStrategy(
        data_parallel_size=processes, tensor_parallel_size=1, save_distributed_checkpoint=False
    )
