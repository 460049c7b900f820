"""How new weights reach a server: the phases of vLLM's weight update, over files or NCCL."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

from safetensors import safe_open

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.vllm_server_files import WeightFile
from vpo_lightning.rollout.vllm_server_http import RolloutServer, ServerLostError

IN_BETWEEN = "updating"
"""Weight version of a server whose update has begun and not ended; never current."""


@runtime_checkable
class WeightTransfer(Protocol):
    """Carries the parts of new weights to a server that has begun an update."""

    backend: str
    """vLLM's name of it, which the server was started with."""

    async def connect(self, server: RolloutServer) -> None:
        """Once for each server, and again after the server was lost."""
        ...

    async def send(self, server: RolloutServer, file: WeightFile) -> None:
        """One part of the weights."""
        ...


class FileTransfer:
    """The server reads the files: in shared memory of one host, or on a shared file system."""

    backend = "files"

    async def connect(self, server: RolloutServer) -> None:
        """Tells the server that an update may come."""
        await server.call("POST", "/init_weight_transfer_engine", {"init_info": {}})

    async def send(self, server: RolloutServer, file: WeightFile) -> None:
        """Has the server load one file."""
        info = {"path": str(file.path), "names": file.names}
        await server.call("POST", "/update_weights", {"update_info": info})


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
            in_thread(lambda: trainer_init(info)),
            server.call("POST", "/init_weight_transfer_engine", body),
        )

    async def send(self, server: RolloutServer, file: WeightFile) -> None:
        """Broadcasts the tensors of one file."""
        info = {"names": file.names, "dtype_names": file.dtypes, "shapes": file.shapes}
        await asyncio.gather(
            server.call("POST", "/update_weights", {"update_info": info}),
            in_thread(lambda: self._broadcast(self._groups[server.url], file)),
        )

    def _broadcast(self, group: Any, file: WeightFile) -> None:
        import torch

        stream = torch.cuda.current_stream()
        with safe_open(file.path, framework="pt", device=self._device) as tensors:
            for name in file.names:
                group.broadcast(tensors.get_tensor(name), src=0, stream=stream)
        stream.synchronize()


async def push(
    server: RolloutServer,
    transfer: WeightTransfer,
    files: Sequence[WeightFile],
    label: str,
    timeout: float,
) -> None:
    """Gives a server new weights; it serves them, and only them, from then on.

    Whatever it is generating is dropped first, and its prefix cache is emptied after. A server in
    which this fails keeps the version `IN_BETWEEN` and may be given weights again.

    Args:
        server: The server.
        transfer: Carries the weights.
        files: The weights.
        label: Names them from now on.
        timeout: Seconds for all of it.

    Raises:
        ServerLostError: A phase failed or was too slow; says which, and the server's text.
        ServerRefusedError: The server does not take such an update.
    """
    phase = "connect"
    try:
        async with asyncio.timeout(timeout):
            if server.state is not None:
                await server.call("POST", "/collective_rpc", {"method": "forget_partial_weights"})
                await transfer.connect(server)
            phase = "pause"
            await server.call("POST", "/pause?mode=abort")
            await _name(server, IN_BETWEEN)
            phase = "start the update"
            await _start(server)
            for number, file in enumerate(files, 1):
                phase = f"take part {number} of {len(files)}"
                await transfer.send(server, file)
            phase = "finish the update"
            await server.call("POST", "/finish_weight_update")
            phase = "empty its prefix cache"
            if not (await server.call("POST", "/reset_prefix_cache"))["success"]:
                raise ServerLostError("/reset_prefix_cache: refused")
            phase = "resume"
            await server.call("POST", "/resume")
            await _name(server, label)
    except TimeoutError as error:
        raise ServerLostError(
            f"{server.url} did not {phase} within engine.handover_timeout={timeout:g} seconds"
        ) from error
    except ServerLostError as error:
        raise ServerLostError(f"{server.url} did not {phase}: {error}") from error


async def _name(server: RolloutServer, label: str) -> None:
    await server.call("POST", "/update_weight_version", {"new_version": label})


async def _start(server: RolloutServer) -> None:
    """Begins an update, after ending one that was left open."""
    try:
        await server.call("POST", "/start_weight_update")
    except ServerLostError as error:
        if "already active" not in str(error):
            raise
        await server.call("POST", "/finish_weight_update")
        await server.call("POST", "/start_weight_update")


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
