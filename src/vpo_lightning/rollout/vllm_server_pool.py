"""Several servers as one: load spread over them, lost requests asked again, returning servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.vllm_server_files import WeightFile
from vpo_lightning.rollout.vllm_server_http import (
    RolloutServer,
    ServerLostError,
    ServerRefusedError,
)
from vpo_lightning.rollout.vllm_server_transfer import WeightTransfer, push

Sampled = tuple[list[int], list[float]]
POLL_SECONDS = 1.0
"""How often a lost server is looked for."""


@dataclass(frozen=True)
class Patience:
    """How long the pool waits, in seconds, and how often it tries.

    Attributes:
        handover: For one server to take new weights.
        server: For a server to come, or to come back.
        attempts: Times that one completion is asked for.
    """

    handover: float | int
    server: float | int
    attempts: int


class ServerPool:
    """Asks servers that have the current weights, and no others.

    A server is asked again once it tells the label of the current weights. The pusher, one process
    of the run, gives them to servers that return without; the others wait for that.

    Args:
        servers: At least one.
        transfer: Carries weights to them.
        patience: Limits.
        is_pusher: Whether this process hands over weights.
        first: Which of equally loaded servers is asked first; the process's rank.
    """

    def __init__(
        self,
        servers: Sequence[RolloutServer],
        transfer: WeightTransfer,
        patience: Patience,
        *,
        is_pusher: bool = True,
        first: int = 0,
    ) -> None:
        turn = first % len(servers)
        self.servers = [*servers[turn:], *servers[:turn]]
        self._transfer = transfer
        self._patience = patience
        self._is_pusher = is_pusher
        self._label = ""
        self._files: Sequence[WeightFile] = ()
        self._is_ready = asyncio.Event()
        self._recovery: asyncio.Task[None] | None = None

    async def connect(self, wanted: Mapping[str, str]) -> int:
        """The longest prompt and completion together that all servers take, in tokens.

        Args:
            wanted: How they must have been started; see `RolloutServer.check_settings`.

        Raises:
            ConfigError: One does not come.
            ServerRefusedError: One was started otherwise.
        """
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._settings(one, wanted)) for one in self.servers]
        return min(task.result() for task in tasks)

    async def hand_over(self, files: Sequence[WeightFile], label: str) -> None:
        """Gives all servers that can be reached new weights; the others get them when they return.

        Raises:
            ServerLostError: None can be reached, or one that can does not take them in time.
            ServerRefusedError: One does not take such an update.
        """
        await self._stop_recovery()
        await self.refresh()
        try:
            async with asyncio.timeout(self._patience.server):
                while not (reached := [server for server in self.servers if server.is_up]):
                    await asyncio.sleep(POLL_SECONDS)
                    await self.refresh()
        except TimeoutError as error:
            raise ServerLostError(f"no server can take new weights: {self._states()}") from error
        async with asyncio.TaskGroup() as group:
            for server in reached:
                group.create_task(self._push(server, files, label))
        self._files = files
        await self.use(label)

    async def use(self, label: str) -> None:
        """Asks only servers that have the weights of this name from now on."""
        await self._stop_recovery()
        self._label = label
        await self.refresh()
        self._recovery = asyncio.create_task(self._recover())

    async def refresh(self) -> None:
        """Looks which servers have the current weights: one may have died and returned since."""
        await asyncio.gather(*(self._look(server) for server in self.servers))

    async def sample(self, prompts: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[Sampled]]:
        """The completion of each request, once, however often it had to be asked for.

        Args:
            prompts: The requests of each prompt; they go to one server, which computes the prompt
                once.

        Raises:
            FloatingPointError: A log-probability is not a number.
            ServerLostError: No server with the current weights for too long, or a request was lost
                too often.
            ServerRefusedError: A request is not possible.
        """
        await self.refresh()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for requests in prompts:
                chosen: list[RolloutServer] = []
                tasks.append([group.create_task(self._one(body, chosen)) for body in requests])
        return [[task.result() for task in row] for row in tasks]

    async def close(self) -> None:
        """Closes all connections."""
        await self._stop_recovery()
        await asyncio.gather(*(server.close() for server in self.servers))

    async def _one(self, body: Mapping[str, Any], chosen: list[RolloutServer]) -> Sampled:
        """One completion from the server chosen for its prompt, or from another if that is lost."""
        problem: Exception | None = None
        for _ in range(self._patience.attempts):
            server = await self._choose(chosen)
            server.load += 1
            try:
                return await server.sample(body, self._label)
            except ServerLostError as error:
                problem = error
                self._lose(server, error)
            finally:
                server.load -= 1
        raise ServerLostError(
            f"a completion was lost {self._patience.attempts} times (engine.attempts), the last "
            f"time because of {problem}"
        )

    async def _choose(self, chosen: list[RolloutServer]) -> RolloutServer:
        """The prompt's server, or the least loaded one; waits while none has the weights."""
        while True:
            if chosen and chosen[0].state is None:
                return chosen[0]
            ready = [server for server in self.servers if server.state is None]
            if ready:
                chosen[:] = [min(ready, key=lambda server: server.load)]
                return chosen[0]
            try:
                async with asyncio.timeout(self._patience.server):
                    await self._is_ready.wait()
            except TimeoutError as error:
                raise ServerLostError(
                    f"no server has had the current weights for engine.server_timeout="
                    f"{self._patience.server:g} seconds: {self._states()}"
                ) from error

    async def _recover(self) -> None:
        """Looks for lost servers as long as the weights are current."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            lost = [server for server in self.servers if server.state is not None]
            await asyncio.gather(*(self._take_back(server) for server in lost))

    async def _take_back(self, server: RolloutServer) -> None:
        """Asks a lost server again if it has the current weights; the pusher gives it those."""
        await self._look(server)
        if server.state is None or not server.is_up or not self._is_pusher:
            return
        try:
            await self._push(server, self._files, self._label)
        except (ServerLostError, ServerRefusedError):
            return  # noted as the server's state; the next look may find it well
        print(f"{server.url} is back and has the current weights", flush=True)
        await self._look(server)

    async def _look(self, server: RolloutServer) -> None:
        """Notes whether a server answers, and has the current weights."""
        try:
            version = await server.weight_version()
        except (ServerLostError, ServerRefusedError) as error:
            server.is_up = False
            self._lose(server, error)
            return
        server.is_up = True
        if version != self._label:
            self._lose(server, ServerLostError(f"it has weights {version}, not {self._label}"))
            return
        server.state = None
        self._is_ready.set()

    async def _push(self, server: RolloutServer, files: Sequence[WeightFile], label: str) -> None:
        try:
            await push(server, self._transfer, files, label, self._patience.handover)
        except (ServerLostError, ServerRefusedError) as error:
            self._lose(server, error)
            raise

    def _lose(self, server: RolloutServer, error: Exception) -> None:
        if server.state is None:
            print(f"warning: {server.url} is lost for now: {error}", flush=True)
        server.state = str(error)
        if all(other.state is not None for other in self.servers):
            self._is_ready.clear()

    async def _settings(self, server: RolloutServer, wanted: Mapping[str, str]) -> int:
        """Waits until a server answers, and looks at how it was started."""
        try:
            async with asyncio.timeout(self._patience.server):
                await self._look(server)
                while not server.is_up:
                    await asyncio.sleep(POLL_SECONDS)
                    await self._look(server)
        except TimeoutError as error:
            raise ConfigError(
                f"no vLLM server answers at {server.url} (engine.urls) after "
                f"engine.server_timeout={self._patience.server:g} seconds: {server.state}; start "
                "it with scripts/serve_rollouts.py"
            ) from error
        return await server.check_settings(wanted)

    async def _stop_recovery(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
            self._recovery = None

    def _states(self) -> str:
        return "; ".join(f"{server.url}: {server.state}" for server in self.servers)
