"""What a language model's config says about the parts that are computed outside of the model.

Policy and engine apply the output head themselves and hand the keys and values of a prompt to
several completions. Both are right only for models without extra steps there.
"""

import torch
from torch import nn

# Names under which transformers' configs change logits after the output head (Gemma 2, Cohere,
# Granite).
_LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def logit_changes(config: object) -> list[str]:
    """Return the settings that change logits after the output head; empty for most families."""
    return [name for name in _LOGIT_CHANGES if getattr(config, name, None) not in (None, 1, 1.0)]


def partial_attention(config: object) -> list[str]:
    """Return the kinds of layers that do not attend to all earlier tokens; empty for most."""
    kinds: list[str] = list(getattr(config, "layer_types", None) or [])
    partial = sorted(set(kinds) - {"full_attention"})
    is_windowed = getattr(config, "sliding_window", None) is not None
    return partial or (["sliding_attention"] if is_windowed and not kinds else [])


def compute_norms_in_float64(model: nn.Module) -> None:
    """Replace a float64 model's RMS norms, which transformers computes in float32, in place.

    Otherwise a float64 run is exact to 1e-7 only, and the order of a batch shows in it. Models of
    other dtypes are left alone. Names of weights stay.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight = getattr(child, "weight", None)
            if not type(child).__name__.endswith("RMSNorm") or weight is None:
                continue
            if weight.dtype != torch.float64:
                return
            norm = nn.RMSNorm(
                weight.shape[0],
                eps=float(getattr(child, "variance_epsilon", 1e-6)),
                dtype=weight.dtype,
            )
            norm.weight = weight
            setattr(parent, name, norm)
