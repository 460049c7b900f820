"""What a vLLM server loads from this package: new weights from files, and stop rules.

`scripts/serve_rollouts.py` names the three classes on the command line of `vllm serve`. Nothing
else imports this module, because it imports vllm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.logits_process import LogitsProcessor as RequestLogitsProcessor
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from vpo_lightning.parsing import StopRule
from vpo_lightning.rollout.stopping import StopTexts


class WorkerExtension:
    """Extends the server's workers (``--worker-extension-cls``) by what the training asks of them.

    vLLM imports this module in every worker before it looks up the weight transfer backend, so
    that the backend ``files`` is known.
    """

    vllm_config: Any
    model_runner: Any

    def rollout_settings(self) -> dict[str, str | int]:
        """What decides whether this server's samples and log-probabilities fit the training."""
        model = self.vllm_config.model_config
        transfer = self.vllm_config.weight_transfer_config
        return {
            "dtype": str(model.dtype).removeprefix("torch."),
            "max_model_len": int(model.max_model_len),
            "logprobs_mode": str(model.logprobs_mode),
            "weight_transfer": transfer.backend if transfer else "none",
        }

    def forget_partial_weights(self) -> None:
        """Drops the parts of an update that broke off: vLLM would add the next one to them."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with set_current_vllm_config(self.vllm_config):
            finalize_layerwise_reload(self.model_runner.get_model(), self.vllm_config.model_config)


@dataclass
class NoInfo(WeightTransferInitInfo):
    """Files need no connection."""


@dataclass
class FileInfo(WeightTransferUpdateInfo):
    """A part of the new weights.

    Attributes:
        path: A safetensors file that this host can read.
        names: The tensors in it, in the order of the model's layers.
    """

    path: str
    names: list[str]


class FileWeightTransferEngine(WeightTransferEngine[NoInfo, FileInfo]):
    """vLLM's weight transfer through safetensors files: shared memory, or a shared file system.

    Layers are rebuilt from the plain weights as when the model was loaded, because a CPU packs its
    linear layers and drops the plain ones.
    """

    init_info_cls = NoInfo
    update_info_cls = FileInfo

    def init_transfer_engine(self, init_info: NoInfo) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """Gives the layers back their plain weights, still empty."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileInfo) -> None:
        """Loads the weights of one file."""
        with safe_open(update_info.path, framework="pt", device=str(self.device)) as file:
            self.model.load_weights((name, file.get_tensor(name)) for name in update_info.names)  # type: ignore[operator]

    def finish_weight_update(self) -> None:
        """Packs the layers that are not complete yet."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing to release."""


if "files" not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine("files", FileWeightTransferEngine)


class StopRuleLogitsProcessor(AdapterLogitsProcessor):
    """Ends a completion at the n-th occurrence of a text (``--logits-processors``).

    vLLM's own stop strings end at the first. A request brings its rule in ``extra_args``: once the
    rule is met, the request's first stop token is forced, which the client cuts off again.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._model_config = vllm_config.model_config
        self._texts: StopTexts | None = None
        self._tables: dict[str, list[int]] = {}

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuses a rule that is not a text and a count, or comes without a stop token."""
        rule = (sampling_params.extra_args or {}).get("stop_rule")
        if rule is None:
            return
        is_rule = isinstance(rule, dict) and set(rule) == {"text", "count"}
        if not is_rule or not sampling_params.stop_token_ids:
            raise ValueError(
                f"extra_args.stop_rule={rule}: expected {{text, count}}, and stop_token_ids to end "
                "with"
            )

    def is_argmax_invariant(self) -> bool:
        """False: greedy completions end at the rule too."""
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """Watches a request that has a rule."""
        rule = (params.extra_args or {}).get("stop_rule")
        if rule is None:
            return None
        return _RuleWatch(self, StopRule(**rule), (params.stop_token_ids or [])[0])

    def texts(self) -> StopTexts:
        """The tokens' texts; made with the first rule."""
        if self._texts is None:
            from transformers import AutoTokenizer

            config = self._model_config
            tokenizer = AutoTokenizer.from_pretrained(
                config.tokenizer, trust_remote_code=config.trust_remote_code
            )
            self._texts = StopTexts(tokenizer, config.get_vocab_size(), torch.device("cpu"))
        return self._texts

    def table(self, text: str) -> list[int]:
        """`StopTexts.table` as a list, which is fast to look up one by one."""
        if text not in self._tables:
            self._tables[text] = self.texts().table(text).tolist()
        return self._tables[text]


class _RuleWatch:
    """Looks at each new token of one request, and forces the end once its rule is met."""

    def __init__(self, processor: StopRuleLogitsProcessor, rule: StopRule, end: int) -> None:
        self._processor = processor
        self._rule = rule
        self._end = end
        self._table = processor.table(rule.text)
        self._counts = processor.texts().is_within_tokens(rule.text)
        self._seen = self._hits = 0

    def __call__(self, output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        if not self._is_met(output_ids):
            return logits
        forced = torch.full_like(logits, -torch.inf)
        forced[self._end] = 0.0
        return forced

    def _is_met(self, output_ids: list[int]) -> bool:
        new = [self._table[i] for i in output_ids[self._seen :]]
        self._seen = len(output_ids)
        if self._counts:
            self._hits += sum(new)
            return self._hits >= self._rule.count
        if not any(new):
            return False
        text = self._processor.texts().decode([output_ids])[0]
        return text.count(self._rule.text) >= self._rule.count
