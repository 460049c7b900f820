"""What a language model's config says about the parts that are computed outside of the model.

Policy and engine apply the output head themselves and hand the keys and values of a prompt to
several completions. Both are right only for models without extra steps there.
"""

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
