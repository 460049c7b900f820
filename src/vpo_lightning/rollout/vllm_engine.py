"""Rollouts by vLLM in the training process: one engine for each process, or for a few of a node."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from vpo_lightning.rollout.engine import (
    Completion,
    GenerationRequest,
    SamplingSettings,
    check_lengths,
)
from vpo_lightning.rollout.expected_weights import ExpectedWeights
from vpo_lightning.rollout.stopping import StopTexts, StopWatch
from vpo_lightning.rollout.vllm_sampling import completion, end_tokens, sampling_fields
from vpo_lightning.rollout.vllm_settings import VLLMSettings, check_model, required_build
from vpo_lightning.rollout.vllm_start import (
    check_build,
    check_processes,
    sharing_group,
    start_vllm,
)


class VLLMEngine:
    """A `RolloutEngine` on vLLM's engine, inside the training process.

    Build it after the processes of a job have set up their group, on all of them together. The ids
    of a completion depend on its seed, its prompt and the weights; in a float32 engine the rest of
    the call matters only through rounding.

    Args:
        model_folder: Folder or Hub id of the start policy.
        dtype: Name of a torch dtype.
        device: Where the policy trains; vLLM takes the process's own GPU, or the CPU.
        trust_remote_code: Run the Python code of the model's folder.
        settings: Fields of `VLLMSettings`.

    Attributes:
        version: Policy version of the weights in use.
        positions: Longest prompt and completion together that it takes, in tokens.

    Raises:
        ConfigError: vLLM is not installed as it must be, or a setting is out of range.
        RuntimeError: The processes of the job have not set up their group yet.
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

        check_model(dtype)
        self._settings = VLLMSettings(**settings)
        self._on_cpu = torch.device(device).type == "cpu"
        check_build(required_build(), on_cpu=self._on_cpu)
        check_processes(self._settings.tensor_parallel_size)
        place = os.path.expanduser(model_folder)
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=trust_remote_code)
        self.version = 0
        self._expected = ExpectedWeights.of_folder(place, trust_remote_code=trust_remote_code)
        self.positions = self._settings.max_model_len or self._expected.positions
        self._ends = end_tokens(place, tokenizer, trust_remote_code=trust_remote_code)
        self._tokenizer = tokenizer
        self._texts = StopTexts(tokenizer, self._expected.vocabulary, torch.device("cpu"))
        self._owns_group = not distributed.is_initialized()
        self._is_complete, self._is_asleep = True, False
        arguments = self._settings.arguments(on_cpu=self._on_cpu, max_model_len=self.positions)
        self._llm: Any = start_vllm(
            place, dtype, torch.device(device), arguments, trust_remote_code=trust_remote_code
        )
        self._sharers = sharing_group(self._settings.tensor_parallel_size)

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[Completion]]:
        """The completions of each request, in the order of its seeds.

        Raises:
            ConfigError: A prompt and its completion do not fit the model's positions.
            RuntimeError: The last weights did not arrive completely.
            ValueError: An empty prompt.
        """
        if not self._is_complete:
            raise RuntimeError(
                "the last load_weights failed, so the engine may hold a mixture of two "
                "versions; load complete weights before generating"
            )
        remedy = "raise engine.max_model_len if the model has more"
        check_lengths(requests, sampling.max_tokens, self.positions, remedy)
        self._wake()
        # An engine that several processes share works on the requests of all of them.
        shares = self._gather(list(requests))
        everyones = [request for share in shares for request in share]
        with torch.random.fork_rng(devices=[]):  # vLLM draws from the global generator as well
            rows = self._run(everyones, sampling)
        if self._settings.sleep and not self._on_cpu:
            self._llm.sleep(level=1)
            self._is_asleep = True
        first = sum(len(share) for share in shares[: self._place_among_sharers()])
        return [
            [
                completion(row.ids, row.logprobs, request.stop, self._ends, self._tokenizer)
                for row in rows[first + i]
            ]
            for i, request in enumerate(requests)
        ]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes new weights by state-dict name; a tied weight may come under any of its names.

        Raises:
            RuntimeError: The prefix cache, which belongs to the old weights, could not be emptied.
            ValueError: A name the model does not have, a name that did not come, or another shape.
                The engine then refuses to generate until complete weights have come.
        """
        self._is_complete = False
        self._wake()
        complete = self._expected.checked(weights)
        try:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": complete})
            for _ in complete:  # what vLLM did not ask for is still checked
                pass
        except BaseException:
            self._llm.collective_rpc(_forget_partial_weights)
            raise
        if not self._llm.reset_prefix_cache():
            raise RuntimeError(
                f"vLLM refused to empty its prefix cache after the weights of version {version} "
                "had come: prompts would be continued from states of the old weights"
            )
        self.version = version
        self._is_complete = True

    def close(self) -> None:
        """Frees the engine's memory, and the process group that it made for itself."""
        if self._llm is None:
            return
        from vllm.distributed import parallel_state

        self._llm.llm_engine.engine_core.shutdown()
        self._llm, self._is_complete = None, False
        parallel_state.destroy_model_parallel()
        if self._owns_group:
            parallel_state.destroy_distributed_environment()

    def _run(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[list[_Row]]:
        """Samples until every row has ended; a row that its stop rule ends is taken out at once."""
        rows = [[_Row() for _ in request.seeds] for request in requests]
        flat = [row for group in rows for row in group]
        watch = StopWatch(self._texts, [r.stop for r in requests for _ in r.seeds])
        sampled = torch.zeros(len(flat), sampling.max_tokens, dtype=torch.int64)
        engine = self._llm.llm_engine
        try:
            self._submit(requests, sampling)
            while engine.has_unfinished_requests():
                for length, places in _grown(engine.step(), flat, sampled).items():
                    at = torch.tensor(places)
                    ended = watch.ended(sampled[at, length - 1], at, sampled, length)
                    # One by one: of several, vLLM frees the cache in the order of a set, which
                    # differs between processes that share the engine and must keep in step.
                    for i in at[ended].tolist():
                        engine.abort_request([str(i)])
        finally:
            # After a failure nothing may be left over for the next call.
            engine.abort_request([str(i) for i in range(len(flat))])
        return rows

    def _submit(self, requests: Sequence[GenerationRequest], sampling: SamplingSettings) -> None:
        """One request for each sample, named by its place; they share their prompt's cache."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        index = 0
        for request in requests:
            prompt = {"prompt_token_ids": list(request.prompt_ids)}
            for seed in request.seeds:
                fields = sampling_fields(sampling, seed, self._ends)
                params = SamplingParams(**fields, output_kind=RequestOutputKind.DELTA)
                self._llm.llm_engine.add_request(str(index), prompt, params)
                index += 1

    def _wake(self) -> None:
        if self._is_asleep:
            self._llm.wake_up()
            self._is_asleep = False

    def _gather(self, requests: list[GenerationRequest]) -> list[list[GenerationRequest]]:
        """The requests of every process that shares this engine, in the order of ranks."""
        if self._sharers is None:
            return [requests]
        shares: list[Any] = [None] * self._settings.tensor_parallel_size
        distributed.all_gather_object(shares, requests, group=self._sharers)
        return shares

    def _place_among_sharers(self) -> int:
        return 0 if self._sharers is None else distributed.get_rank(self._sharers)


@dataclass
class _Row:
    """What one sample has got so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def _grown(outputs: Sequence[Any], rows: list[_Row], sampled: Tensor) -> dict[int, list[int]]:
    """Adds new tokens to their rows and to `sampled`; the rows that got one, by new length."""
    grown: dict[int, list[int]] = {}
    for output in outputs:
        index, sample = int(output.request_id), output.outputs[0]
        row = rows[index]
        for token, chances in zip(sample.token_ids, sample.logprobs, strict=True):
            sampled[index, len(row.ids)] = token
            row.ids.append(token)
            row.logprobs.append(chances[token].logprob)
            grown.setdefault(len(row.ids), []).append(index)
    return grown


def _forget_partial_weights(worker: Any) -> None:
    """After weights that came in part: else vLLM adds the next ones to the parts of a layer."""
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

    finalize_layerwise_reload(worker.model_runner.get_model(), worker.model_config)
