"""Small language models of several families, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from vpo_lightning.core.architecture import compute_norms_in_float64
from vpo_lightning.core.types import TokenBatch

FAMILIES: dict[str, tuple[type, type]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
EOS = 1


def tiny_model(
    family: str = "qwen3",
    dtype: torch.dtype = torch.float32,
    *,
    vocabulary: int = 40,
    seed: int = 0,
    is_exact: bool = False,
    **settings: Any,
) -> PreTrainedModel:
    """A model of 2 layers with grouped key heads and random weights of a visible size.

    Args:
        family: A key of `FAMILIES`.
        dtype: Of the weights.
        vocabulary: Number of tokens; token 1 ends a sequence.
        seed: Of the weights.
        is_exact: Compute norms in `dtype` too; transformers computes them in float32.
        settings: Fields of the config.
    """
    config_class, model_class = FAMILIES[family]
    fields = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "initializer_range": 0.3,
        "pad_token_id": 0,
        "eos_token_id": EOS,
        **settings,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_class(config_class(**fields)).to(dtype)
    model.generation_config = GenerationConfig(eos_token_id=EOS, pad_token_id=0)
    if is_exact:
        compute_norms_in_float64(model)
    return model.eval()


def ragged_batch(
    prompts: int = 3, group: int = 4, *, vocabulary: int = 40, seed: int = 0, longest: int = 9
) -> TokenBatch:
    """Prompts of 2 to 7 tokens with completions of 1 to `longest`, in a random order."""
    rng = torch.Generator().manual_seed(seed)
    rows = prompts * group
    index = torch.arange(prompts).repeat_interleave(group)
    return TokenBatch(
        prompt_ids=torch.randint(2, vocabulary, (prompts, 7), generator=rng),
        prompt_lengths=torch.randint(2, 8, (prompts,), generator=rng),
        completion_ids=torch.randint(2, vocabulary, (rows, longest), generator=rng),
        completion_lengths=torch.randint(1, longest + 1, (rows,), generator=rng),
        prompt_index=index[torch.randperm(rows, generator=rng)],
    )


def gradients(model: nn.Module) -> list[Tensor]:
    """A copy of every parameter's gradient; the model's are cleared."""
    copies = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return copies
