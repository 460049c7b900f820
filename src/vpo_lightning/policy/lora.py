"""Low-rank adapters on a policy (LoRA, arXiv:2106.09685), by peft.

The adapters are put into the model itself, which keeps its class and methods. Its start weights
stay as they are: with the adapters off it is the start policy, which is the reference policy.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpo_lightning.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel

_NAME = "default"
"""peft's name of an adapter."""
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class LoraSettings:
    """Adapters: a linear layer computes ``W x + (alpha / rank) B A x``, and only A and B learn.

    Attributes:
        rank: 0 trains all weights of the model instead.
        alpha: Scale of the adapters, over the rank.
        dropout: Probability with which an adapter's input is dropped in training.
        targets: Linear layers by the last words of their name (``q_proj``,
            ``layers.0.self_attn.q_proj``), or ``all-linear``: every one but the output head.
    """

    rank: int = 0
    alpha: int | float = 32
    dropout: int | float = 0
    targets: Sequence[str] | str = ALL_LINEAR

    def check(self) -> None:
        """Refuses settings that cannot work; quick, and without importing torch.

        Raises:
            ConfigError: Names the key to change, or the package that is missing.
        """
        for name, is_right, expected in (
            (
                "rank",
                type(self.rank) is int and self.rank >= 0,
                "a whole number, 0 for no adapters",
            ),
            ("alpha", _is_number(self.alpha) and self.alpha > 0, "positive"),
            ("dropout", _is_number(self.dropout) and 0 <= self.dropout < 1, "in [0, 1)"),
            ("targets", bool(self.targets), "names of linear layers, or all-linear"),
        ):
            if not is_right:
                raise ConfigError(f"model.lora.{name}={getattr(self, name)}: it must be {expected}")
        if isinstance(self.targets, str) and self.targets != ALL_LINEAR:
            raise ConfigError(
                f"model.lora.targets={self.targets}: expected a list of names, "
                f"[{self.targets}], or {ALL_LINEAR}"
            )
        if self.rank and importlib.util.find_spec("peft") is None:
            raise ConfigError(
                f"model.lora.rank={self.rank} needs the package peft: pip install "
                "'vpo-lightning[lora]'; or set model.lora.rank=0"
            )


def add_adapters(
    model: PreTrainedModel, settings: LoraSettings, dtype: torch.dtype, seed: int
) -> None:
    """Puts adapters, which change nothing at first, into the model; all else is frozen.

    Args:
        model: Changed in place.
        settings: Which layers, and how large.
        dtype: Of the adapters' weights.
        seed: Of A, which starts random; B starts at zero.

    Raises:
        ConfigError: A target that the model does not have or that cannot have an adapter.
    """
    import torch
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=settings.rank,
        # peft takes fractions too, though it declares whole numbers.
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        lora_dropout=settings.dropout,
        target_modules=_targeted_layers(model, settings.targets),
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model, _NAME)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers with adapters by name; empty for a model without."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Switches the adapters off: the model is the start policy."""
    layers = adapted_layers(model).values()
    _switch(layers, is_on=False)
    try:
        yield
    finally:
        _switch(layers, is_on=True)


def save_adapters(
    model: PreTrainedModel, weights: Mapping[str, Tensor], folder: Path, base: str
) -> None:
    """Writes the adapters as peft does, to be put on the start policy by peft or an engine.

    Args:
        model: Has the adapters.
        weights: The adapters' full weights by state-dict name.
        folder: Made by the call.
        base: The start policy, noted in the config.
    """
    from safetensors.torch import save_file

    config = getattr(model, "peft_config")[_NAME]  # noqa: B009  (peft sets it; transformers declares none)
    config.base_model_name_or_path = base
    config.save_pretrained(folder)
    named = {
        f"base_model.model.{name.replace(f'.{_NAME}.', '.')}": tensor.contiguous()
        for name, tensor in weights.items()
    }
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def is_adapter(name: str) -> bool:
    """Whether a state-dict name is that of an adapter's weight."""
    return ".lora_A." in name or ".lora_B." in name


def merged(layer: Any, base: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The layer's weight with its adapter, ``W + (alpha / rank) B A``, in the dtype of W."""
    exact = base.to(b.dtype) if b.dtype.itemsize > base.dtype.itemsize else base
    return (exact + layer.scaling[_NAME] * (b @ a).to(exact.dtype)).to(base.dtype)


def _targeted_layers(model: PreTrainedModel, targets: Sequence[str] | str) -> list[str]:
    """Full names of the layers that get adapters."""
    from torch import nn

    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    head = model.get_output_embeddings()
    heads = [name for name, module in model.named_modules() if module is head]
    if isinstance(targets, str):
        return [name for name in names if name not in heads]
    found: dict[str, list[str]] = {
        target: [name for name in names if f".{name}".endswith(f".{target}")] for target in targets
    }
    missing = [target for target, matches in found.items() if not matches]
    if missing:
        known = sorted({name.rpartition(".")[2] for name in names})
        raise ConfigError(
            f"model.lora.targets: the model has no linear layer {', '.join(missing)}; it has "
            f"{', '.join(known)}"
        )
    chosen = dict.fromkeys(name for matches in found.values() for name in matches)
    if model.config.tie_word_embeddings and any(name in heads for name in chosen):
        raise ConfigError(
            f"model.lora.targets: {', '.join(heads)} is tied to the input embedding of this model "
            "and cannot have an adapter of its own; leave it out"
        )
    return list(chosen)


def _switch(layers: Iterable[Any], *, is_on: bool) -> None:
    # peft's own switch also freezes the adapters, which a shard of them does not survive.
    for layer in layers:
        layer._disable_adapters = not is_on


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
