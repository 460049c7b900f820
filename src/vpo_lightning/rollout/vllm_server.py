"""Rollouts from vLLM servers on other GPUs or hosts."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from vpo_lightning.errors import ConfigError
from vpo_lightning.rollout.engine import (
    Completion,
    GenerationRequest,
    SamplingSettings,
    check_lengths,
)
from vpo_lightning.rollout.expected_weights import ExpectedWeights
from vpo_lightning.rollout.vllm_sampling import (
    completion,
    end_tokens,
    sampling_fields,
    tokens_until_stop,
)
from vpo_lightning.rollout.vllm_server_files import WeightFolder
from vpo_lightning.rollout.vllm_server_http import (
    RolloutServer,
    ServerLostError,
    ServerRefusedError,
)
from vpo_lightning.rollout.vllm_server_loop import EventLoopThread
from vpo_lightning.rollout.vllm_server_nccl import NCCLTransfer
from vpo_lightning.rollout.vllm_server_pool import Patience, Sampled, ServerPool
from vpo_lightning.rollout.vllm_server_settings import VLLMServerSettings
from vpo_lightning.rollout.vllm_server_transfer import FileTransfer, WeightTransfer
from vpo_lightning.rollout.vllm_settings import LOGPROBS_MODE, check_model

T = TypeVar("T")


class VLLMServerEngine:
    """A `RolloutEngine` that asks one or more vLLM servers.

    Every process of a run has one, asks for its own prompts, and takes part in every
    `load_weights`; the process of rank 0 alone hands over weights. The servers may hold any weights
    of the model's shape when the engine is made: they are given the start policy's.

    Weights have a name that no other hand-over has. A server tells it with every token, so a server
    that died and returned with other weights is noticed: it is given the current ones, and what it
    said before is dropped and asked for again. A completion depends on its seed, its prompt and the
    weights; what else the server computes matters only through rounding, so asking again repeats
    it.

    Args:
        model_folder: Folder or Hub id of the start policy.
        trust_remote_code: Run the Python code of the model's folder.
        settings: Fields of `VLLMServerSettings`.

    Attributes:
        version: Policy version of the weights in use.
        positions: Longest prompt and completion together that all servers take, in tokens.

    Raises:
        ConfigError: Settings that do not fit the servers.
        RuntimeError: A server does not come, or does not take the start policy.
    """

    def __init__(
        self,
        model_folder: str | Path,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        trust_remote_code: bool = False,
        **settings: Any,
    ) -> None:
        from transformers import AutoTokenizer

        checked = VLLMServerSettings(**settings)
        check_model(dtype)
        place = os.path.expanduser(model_folder)
        self.version = 0
        self._tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
        self._ends = end_tokens(place, self._tokenizer, trust_remote_code=trust_remote_code)
        self._expected = ExpectedWeights.of_folder(place, trust_remote_code=trust_remote_code)
        self._rank = distributed.get_rank() if distributed.is_initialized() else 0
        self._is_complete = False
        carrier = NCCLTransfer(device) if checked.transfer == "nccl" else FileTransfer()
        self._folder = WeightFolder(checked.weights_dir) if self._rank == 0 else None
        self._loop = EventLoopThread()
        self._pool = self._loop.run(_make_pool(checked, carrier, self._rank))
        wanted = {
            "dtype": dtype,
            "logprobs_mode": LOGPROBS_MODE,
            "weight_transfer": checked.transfer,
        }
        try:
            self.positions: int = self._on_rank_0(
                lambda: self._loop.run(self._pool.connect(wanted))
            )
            weights = _start_weights(place, dtype, trust_remote_code) if self._rank == 0 else ()
            self.load_weights(weights, 0)
        except BaseException:
            self.close()
            raise

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        """The completions of each request, in the order of its seeds.

        Raises:
            ConfigError: A prompt and its completion do not fit the servers' positions, or a server
                refuses a request for another reason.
            FloatingPointError: The weights have diverged.
            RuntimeError: The last weights did not arrive, or no server is left that has them.
            ValueError: An empty prompt.
        """
        if not self._is_complete:
            raise RuntimeError(
                "the last load_weights failed, so no server has the current weights; hand over "
                "weights before generating"
            )
        # vLLM would shorten a completion that does not fit.
        remedy = "start the servers with a larger --max-model-len"
        check_lengths(requests, sampling.max_tokens, self.positions, remedy)
        bodies = [
            [self._body(request, seed, sampling) for seed in request.seeds] for request in requests
        ]
        try:
            sampled = self._loop.run(self._pool.sample(bodies))
        except ServerRefusedError as error:
            raise ConfigError(f"engine=vllm_server: {error}") from error
        return [
            [self._completion(request, one) for one in row]
            for request, row in zip(requests, sampled, strict=True)
        ]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Hands over new weights by state-dict name; all processes of the run must call.

        A tied weight may come under any of its names.

        Raises:
            ConfigError: The weights cannot be written, or a server does not take such an update.
            RuntimeError: A server did not take them in time.
            ValueError: A name the model does not have, a name that did not come, or another shape.
                After any of these the engine refuses to generate until complete weights have come.
        """
        self._is_complete = False
        label = f"{version}-{uuid.uuid4().hex[:8]}"

        def hand_over() -> str:
            assert self._folder is not None
            files = self._folder.write(self._expected.checked(weights))
            self._loop.run(self._pool.hand_over(files, label))
            return label

        if self._rank != 0:
            for _ in weights:  # gathering a shard needs all processes
                pass
        label = self._on_rank_0(hand_over)
        if self._rank != 0:
            self._loop.run(self._pool.use(label))
        self.version = version
        self._is_complete = True

    def close(self) -> None:
        """Closes the connections and deletes the files; the servers go on."""
        self._is_complete = False
        self._loop.run(self._pool.close())
        self._loop.stop()
        if self._folder is not None:
            self._folder.close()

    def _on_rank_0(self, work: Callable[[], T]) -> T:
        """The result, or the error, of `work` on rank 0, on every process."""
        outcome: list[Any] = [None, None]
        if self._rank == 0:
            try:
                outcome = [work(), None]
            except ServerRefusedError as error:
                outcome = [None, ConfigError(f"engine=vllm_server: {error}")]
            except (ServerLostError, ConfigError, ValueError) as error:
                outcome = [None, error]
        if distributed.is_initialized() and distributed.get_world_size() > 1:
            distributed.broadcast_object_list(outcome, src=0)
        value, error = outcome
        if error is not None:
            raise error
        return value

    def _body(
        self, request: GenerationRequest, seed: int, sampling: SamplingSettings
    ) -> dict[str, Any]:
        fields = sampling_fields(sampling, seed, self._ends)
        if request.stop is not None and self._ends:
            rule = {"text": request.stop.text, "count": request.stop.count}
            fields["extra_args"] = {"stop_rule": rule}
        return {"token_ids": list(request.prompt_ids), "sampling_params": fields}

    def _completion(self, request: GenerationRequest, sampled: Sampled) -> Completion:
        ids, logprobs = sampled
        kept = tokens_until_stop(ids, request.stop, self._tokenizer)
        return completion(ids[:kept], logprobs[:kept], request.stop, self._ends, self._tokenizer)


async def _make_pool(
    settings: VLLMServerSettings, transfer: WeightTransfer, rank: int
) -> ServerPool:
    """The servers; made inside the event loop that uses them."""
    servers = [
        RolloutServer(
            url, connections=settings.concurrency, request_timeout=settings.request_timeout
        )
        for url in settings.urls
    ]
    patience = Patience(settings.handover_timeout, settings.server_timeout, settings.attempts)
    return ServerPool(servers, transfer, patience, is_pusher=rank == 0, first=rank)


def _start_weights(place: str, dtype: str, trust_remote_code: bool) -> Iterable[tuple[str, Tensor]]:
    """The start policy's weights by state-dict name."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        place, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code
    )
    return model.state_dict().items()
