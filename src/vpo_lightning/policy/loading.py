"""Pretrained models: what can be checked before torch is imported, loading, saving, chat to ids."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.lora import LoraSettings
from vpo_lightning.policy.model_folder import check_model_folder

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DTYPES = ("float32", "float64", "bfloat16", "float16")
ATTENTIONS = ("sdpa", "eager", "flash_attention_2")
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

CHAT_TEMPLATE_KWARGS: Mapping[str, Any] = {"enable_thinking": False}
"""Variables of the chat template where no config names any; only templates that think read them."""


@dataclass(frozen=True)
class PretrainedModel:
    """A model of the Hugging Face Hub or of a local folder.

    Attributes:
        path: Local folder, or ``organisation/name`` on the Hub.
        dtype: Of computing, and of the engine's weights: ``float32``, ``float64``, ``bfloat16`` or
            ``float16``.
        master_dtype: The trained weights are kept at least this precise, since an optimizer's steps
            are smaller than the spacing of ``bfloat16``; null for `dtype`.
        attention: ``sdpa``, ``eager`` or ``flash_attention_2``.
        gradient_checkpointing: Recompute activations in the backward pass; prompts are then
            not shared.
        chat_template_kwargs: Variables of the chat template, e.g. ``enable_thinking: false``.
        prefill: What the template then puts before an answer. It is in the prompt and not in the
            completion; a task whose format counts it as part of the answer reads it from here.
        trust_remote_code: Run Python code that the model's author put beside the weights.
        lora: Adapters that are trained instead of the model's own weights.
        made_by: The command that makes the folder, for the message where it is missing.
    """

    path: str
    dtype: str = "bfloat16"
    master_dtype: str | None = "float32"
    attention: str = "sdpa"
    gradient_checkpointing: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(
        default_factory=lambda: dict(CHAT_TEMPLATE_KWARGS)
    )
    prefill: str = ""
    trust_remote_code: bool = False
    lora: LoraSettings = field(default_factory=LoraSettings)
    made_by: str = ""

    def check(self) -> None:
        """Refuses what cannot load; quick, and without importing torch.

        A local folder is looked into; whether a Hub id exists shows only when it is loaded.

        Raises:
            ConfigError: Names the key to change and the file that is missing.
        """
        for name, value in (("dtype", self.dtype), ("master_dtype", self.master_dtype)):
            if value not in DTYPES and not (value is None and name == "master_dtype"):
                raise ConfigError(f"model.{name}={value}: set it to one of {', '.join(DTYPES)}")
        if self.attention not in ATTENTIONS:
            raise ConfigError(
                f"model.attention={self.attention}: set it to one of {', '.join(ATTENTIONS)}"
            )
        self.lora.check()
        folder = Path(self.path).expanduser()
        is_path = folder.exists() or self.path.startswith((".", "/", "~"))
        if self.made_by and is_path and not folder.exists():
            raise ConfigError(f"model.path={self.path}: no such folder; make it: {self.made_by}")
        if is_path:
            check_model_folder(folder, f"model.path={self.path}")
        elif not _HUB_ID.fullmatch(self.path):
            raise ConfigError(
                f"model.path={self.path}: no such folder, and not a Hub id (organisation/name); "
                f"set model.path to one of the two"
            )

    def key(self) -> dict[str, Any]:
        """What decides the weights, for a cache key."""
        return {"kind": "pretrained", "path": self.path, "dtype": self.dtype}

    def load(self) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """The model and its tokenizer.

        Raises:
            ConfigError: See `check`.
        """
        self.check()
        model = load_model(
            self.path, self.dtype, self.attention, trust_remote_code=self.trust_remote_code
        )
        if self.gradient_checkpointing:
            model.gradient_checkpointing_enable()
        return model, load_tokenizer(self.path, trust_remote_code=self.trust_remote_code)


def load_model(
    folder: str | Path, dtype: str, attention: str, *, trust_remote_code: bool = False
) -> PreTrainedModel:
    """The causal language model of a folder or Hub id, in evaluation mode, on the CPU.

    Args:
        folder: Local folder or Hub id.
        dtype: Name of a torch dtype.
        attention: transformers' name of the attention function.
        trust_remote_code: Run the Python code of the model's folder.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from vpo_lightning.core.architecture import compute_norms_in_float64

    with _loadable(folder):
        model = AutoModelForCausalLM.from_pretrained(
            expanded(folder),
            dtype=getattr(torch, dtype),
            attn_implementation=attention,
            trust_remote_code=trust_remote_code,
        )
    compute_norms_in_float64(model)
    return model


def load_tokenizer(
    folder: str | Path, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub id."""
    from transformers import AutoTokenizer

    with _loadable(folder):
        return AutoTokenizer.from_pretrained(expanded(folder), trust_remote_code=trust_remote_code)


@contextmanager
def _loadable(folder: str | Path) -> Iterator[None]:
    """Says in one line which model it is that transformers cannot find or does not know."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the model {folder} cannot be loaded: {reason}") from error


def expanded(folder: str | Path) -> str:
    """A local folder with its home directory expanded, or the Hub id as it is."""
    local = Path(folder).expanduser()
    return str(local) if local.exists() else str(folder)


def save_model_folder(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    path: str | Path,
    state_dict: Mapping[str, Tensor] | None = None,
    add: Callable[[Path], None] | None = None,
) -> Path:
    """Writes weights, configs and tokenizer as a folder that transformers and vLLM load.

    Everything is written beside `path` and renamed at the end, so that a folder of this name is
    complete; an older one is replaced.

    Args:
        model: Gives the configs, and the weights unless `state_dict` does.
        tokenizer: Saved beside the model.
        path: The folder.
        state_dict: Full weights by name, where the model has none of its own.
        add: Writes further files into the new folder, before it gets its name.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.new")
    old = new.with_suffix(".old")
    try:
        model.save_pretrained(new, state_dict=None if state_dict is None else dict(state_dict))
        tokenizer.save_pretrained(new)
        if add is not None:
            add(new)
        if path.exists():
            path.rename(old)
        new.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return path


def encode_messages(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, str]],
    chat_template_kwargs: Mapping[str, Any] | None = None,
    system_prompt: str | None = None,
) -> list[int]:
    """Token ids of a prompt, with the special tokens that the chat template writes and no others.

    The template is rendered to text and tokenised without special tokens: a tokenizer that adds a
    beginning-of-sequence token would otherwise add a second one.

    Args:
        tokenizer: Has a chat template.
        messages: Chat messages with `role` and `content`.
        chat_template_kwargs: Variables of the template.
        system_prompt: Text of a system message, for messages without one; None adds none.

    Raises:
        ConfigError: The tokenizer has no chat template, or a word model does not know a word.
    """
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; set "
            f"model.path to an instruction-tuned model, or add a chat_template.jinja to its folder"
        )
    text = tokenizer.apply_chat_template(
        [*_system(messages, system_prompt), *(dict(message) for message in messages)],
        tokenize=False,
        add_generation_prompt=True,
        **(chat_template_kwargs or {}),
    )
    assert isinstance(text, str)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]  # pyright: ignore
    _refuse_unknown_words(tokenizer, text, ids)
    return ids


def _system(messages: Sequence[Mapping[str, str]], text: str | None) -> list[dict[str, str]]:
    has_one = any(message["role"] == "system" for message in messages)
    return [] if text is None or has_one else [{"role": "system", "content": text}]


def _refuse_unknown_words(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]) -> None:
    """A word model reads all words outside its vocabulary as one token: their meaning is lost."""
    if tokenizer.unk_token_id is None or tokenizer.unk_token_id not in ids:
        return
    words = text.split()
    if len(words) == len(ids):
        unknown = [w for w, i in zip(words, ids, strict=True) if i == tokenizer.unk_token_id]
        raise ConfigError(
            f"the model's vocabulary lacks the prompt words {sorted(set(unknown))[:5]}; build the "
            f"model for this task, or list the words in the task's `vocabulary()`"
        )
