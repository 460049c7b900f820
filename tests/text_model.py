"""A tiny language model for any text: byte-level tokens, random weights, a chat template."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from tests.tiny_models import tiny_model
from vpo_lightning.policy.loading import save_model_folder

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def save_text_model(folder: Path) -> Path:
    """Writes the model folder and returns it."""
    vocabulary = {"<pad>": 0, "<eos>": 1}
    for character in sorted(ByteLevel.alphabet()):
        vocabulary[character] = len(vocabulary)
    backend = Tokenizer(BPE(vocabulary, []))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    backend.decoder = ByteDecoder()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )
    model = tiny_model(vocabulary=len(vocabulary), max_position_embeddings=4096)
    return save_model_folder(model, tokenizer, folder)
