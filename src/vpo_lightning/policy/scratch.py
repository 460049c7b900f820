"""A small causal language model built from nothing: a standard architecture and a word tokenizer.

The model is a plain transformers ``Qwen3ForCausalLM`` and the tokenizer a normal fast tokenizer, so
that the folder they are saved to loads in transformers and in vLLM like any published model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from vpo_lightning.errors import ConfigError
from vpo_lightning.policy.lora import LoraSettings

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SPECIALS = PAD, EOS, UNKNOWN = ("<pad>", "<eos>", "<unk>")
# A chat is the contents of its messages, joined by a space: the words of the task and nothing else.
CHAT_TEMPLATE = "{{ messages | map(attribute='content') | join(' ') }}"
# Part of the cache key: raise it when the same fields start to give other weights.
_RECIPE = 1


@dataclass(frozen=True)
class ScratchModel:
    """Size of a Qwen3 model with random weights.

    Attributes:
        hidden_size: Width of the residual stream.
        num_layers: Transformer blocks.
        num_heads: Query heads of a block.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Width of one head; even. vLLM's CPU attention takes 32, 64, 80 and more.
        intermediate_size: Width of the feed-forward layer.
        rope_theta: Base of the rotary position embedding.
        max_positions: Longest prompt and completion together, in tokens.
        dtype: ``float32``, ``float64`` or ``bfloat16``.
        attention: transformers' name of the attention function, ``sdpa`` or ``eager``.
        gradient_checkpointing: Recompute activations in the backward pass; prompts are then
            not shared.
        lora: Adapters that are trained after the warm-up instead of the model's own weights.
    """

    master_dtype: ClassVar[None] = None
    trust_remote_code: ClassVar[bool] = False
    hidden_size: int = 64
    num_layers: int = 3
    num_heads: int = 2
    num_kv_heads: int = 1
    head_dim: int = 32
    intermediate_size: int = 192
    rope_theta: float = 1e4
    max_positions: int = 512
    dtype: str = "float32"
    attention: str = "sdpa"
    gradient_checkpointing: bool = False
    lora: LoraSettings = field(default_factory=LoraSettings)

    def check(self) -> None:
        """Refuses sizes that do not fit together; quick, and without importing torch.

        Raises:
            ConfigError: Names the key to change.
        """
        for name, value in asdict(self).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value <= 0:
                raise ConfigError(f"model.{name}={value}: it must be positive")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"model.num_kv_heads={self.num_kv_heads} does not divide "
                f"model.num_heads={self.num_heads}; set it to a divisor"
            )
        if self.head_dim % 2:
            raise ConfigError(f"model.head_dim={self.head_dim}: rotary embeddings need it even")
        if self.dtype not in ("float32", "float64", "bfloat16"):
            raise ConfigError(f"model.dtype={self.dtype}: set it to float32, float64 or bfloat16")
        if self.attention not in ("sdpa", "eager"):
            raise ConfigError(f"model.attention={self.attention}: set it to sdpa or eager")
        self.lora.check()

    def key(self) -> dict[str, Any]:
        """What decides the weights beside the words and the seed, for a cache key."""
        fields = asdict(self)
        del fields["attention"], fields["gradient_checkpointing"], fields["lora"]
        return {"kind": "scratch", "recipe": _RECIPE, **fields}

    def build(
        self, words: Sequence[str], seed: int
    ) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """A new model and its tokenizer; see `build_scratch_model`."""
        return build_scratch_model(words, self, seed)


def build_scratch_model(
    words: Sequence[str], size: ScratchModel, seed: int
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A Qwen3 model with random weights and the tokenizer of `words`.

    Linear layers start normal with deviation 1/sqrt(inputs), the embedding with .5, and the output
    head as .2 times the embedding (a head with deviation .02 learned far worse on mazes). The draws
    depend on `seed` alone; the global generator is neither read nor moved.

    Args:
        words: The vocabulary beside the special tokens; no duplicates, no white space.
        size: Sizes, dtype and attention function of the model.
        seed: Decides the weights.

    Raises:
        ConfigError: Sizes that do not fit together, or words that cannot be a vocabulary.
    """
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    size.check()
    tokenizer = word_tokenizer(words)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden_size,
        intermediate_size=size.intermediate_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        num_key_value_heads=size.num_kv_heads,
        head_dim=size.head_dim,
        max_position_embeddings=size.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": float(size.rope_theta)},
        tie_word_embeddings=False,
        pad_token_id=SPECIALS.index(PAD),
        eos_token_id=SPECIALS.index(EOS),
        dtype=size.dtype,
    )
    config._attn_implementation = size.attention
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights that are replaced below
        model = Qwen3ForCausalLM(config)
    _initialise(model, torch.Generator().manual_seed(seed))
    model.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=True
    )
    if size.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model.to(getattr(torch, size.dtype)), tokenizer


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerBase:
    """A fast tokenizer with one token per word of white-space separated text.

    Decoding joins words by a space. Its chat template joins the contents of the messages by a space
    and adds no token of its own.

    Raises:
        ConfigError: A word is empty, repeated, holds white space, or is a special token.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(SPECIALS)}
    for word in words:
        if word in vocabulary or word.split() != [word]:
            raise ConfigError(
                f"vocabulary word {word!r}: expected words that are distinct, without white space, "
                f"and none of {', '.join(SPECIALS)}; the task's `vocabulary()` lists them"
            )
        vocabulary[word] = len(vocabulary)
    backend = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _initialise(model: PreTrainedModel, generator: torch.Generator) -> None:
    """Draws every weight matrix in the order of the modules; norms stay 1."""
    import torch

    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                module.weight.normal_(0.0, 0.5, generator=generator)
            elif isinstance(module, torch.nn.Linear):
                module.weight.normal_(0.0, module.in_features**-0.5, generator=generator)
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        head.weight.copy_(0.2 * embedding.weight)  # type: ignore[union-attr, operator]
