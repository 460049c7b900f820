"""How new weights reach a server: the phases of vLLM's weight update, and files as the carrier."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

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


async def push(
    server: RolloutServer,
    transfer: WeightTransfer,
    files: Sequence[WeightFile],
    label: str,
    timeout: float | int,
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
