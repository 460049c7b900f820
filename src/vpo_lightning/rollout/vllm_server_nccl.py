"""New weights by NCCL, from the GPU of the training process of rank 0 to those of a server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from safetensors import safe_open

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.vllm_server_files import WeightFile
from vpo_lightning.rollout.vllm_server_http import RolloutServer


class NCCLTransfer:
    """Broadcast from this process's GPU to the workers of a server, which may be elsewhere.

    Args:
        device: The GPU of this process.
    """

    backend = "nccl"

    def __init__(self, device: str) -> None:
        if not device.startswith("cuda"):
            raise ConfigError(
                f"engine.transfer=nccl needs a GPU in the training process, which uses {device}; "
                "set engine.transfer=files"
            )
        self._device = device
        self._groups: dict[str, Any] = {}

    async def connect(self, server: RolloutServer) -> None:
        """Makes a process group of this process, as rank 0, and the server's workers."""
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        address = local_address(server.url)
        info = {
            "master_address": address,
            "master_port": free_port(address),
            "world_size": 1 + await server.world_size(),
        }
        body = {"init_info": {**info, "rank_offset": 1, "packed": False}}
        self._groups[server.url], _ = await asyncio.gather(
            in_thread(lambda: self._on_device(lambda: trainer_init(info))),
            server.call("POST", "/init_weight_transfer_engine", body),
        )

    async def send(self, server: RolloutServer, file: WeightFile) -> None:
        """Broadcasts the tensors of one file."""
        info = {"names": file.names, "dtype_names": file.dtypes, "shapes": file.shapes}
        await asyncio.gather(
            server.call("POST", "/update_weights", {"update_info": info}),
            in_thread(lambda: self._on_device(lambda: self._broadcast(server.url, file))),
        )

    def _on_device(self, work: Callable[[], Any]) -> Any:
        import torch

        torch.cuda.set_device(self._device)  # a new thread starts on the first GPU
        return work()

    def _broadcast(self, url: str, file: WeightFile) -> None:
        import torch

        group, stream = self._groups[url], torch.cuda.current_stream()
        with safe_open(file.path, framework="pt", device=self._device) as tensors:
            for name in file.names:
                group.broadcast(tensors.get_tensor(name), src=0, stream=stream)
        stream.synchronize()


async def in_thread(work: Callable[[], Any]) -> Any:
    """The result of `work` in a thread that does not keep the process alive if it hangs."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: Exception | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)
        else:
            result.set_exception(error)

    def run() -> None:
        try:
            outcome = (work(), None)
        except Exception as error:  # handed to the caller, whatever it is
            outcome = (None, error)
        loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await result


def local_address(url: str) -> str:
    """This host's address as the host of `url` reaches it."""
    place = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((place.hostname or "", place.port or 80))  # sends nothing
        return str(probe.getsockname()[0])


def free_port(address: str) -> int:
    """A port that nothing listens on at present."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
