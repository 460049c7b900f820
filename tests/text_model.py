"""A tiny language model for any text: byte-level tokens, random weights, a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import tiny_model
from vpo_lightning.policy.loading import save_model_folder

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def save_text_model(folder: Path, **settings: Any) -> Path:
    """Writes the model folder and returns it; `settings` are fields of the model's config."""
    vocabulary = {"<pad>": 0, "<eos>": 1}
    for character in sorted(ByteLevel.alphabet()):
        vocabulary[character] = len(vocabulary)
    backend = Tokenizer(BPE(vocabulary, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = ByteDecoder()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )
    fields = {"max_position_embeddings": 4096, **settings}
    model = tiny_model(vocabulary=len(vocabulary), **fields)
    return save_model_folder(model, tokenizer, folder)
