"""Which weights an engine must be given: names and shapes of its model's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


class ExpectedWeights:
    """Names and shapes of a model's weights, to check a stream of new ones against.

    Args:
        model: A causal language model of transformers.

    Attributes:
        positions: Longest prompt and completion together, in tokens.
        vocabulary: Number of tokens the model can sample.
    """

    def __init__(self, model: Any) -> None:
        self._shapes = {name: tuple(w.shape) for name, w in model.state_dict().items()}
        self._ties = _ties(model)
        self.positions = int(model.config.get_text_config().max_position_embeddings)
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])

    @classmethod
    def of_folder(cls, folder: str, *, trust_remote_code: bool = False) -> ExpectedWeights:
        """Those of a model folder or Hub id, of which only the config is read."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            return cls(
                AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
            )

    def checked(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The same weights, each once; a tied weight under every one of its names.

        vLLM's CPU build keeps a packed copy of a tied output head, which stays the old one unless
        the weight comes under the head's own name as well.

        Raises:
            ValueError: A name the model does not have, another shape, or names that did not come.
        """
        missing = dict.fromkeys(self._shapes)
        for name, tensor in weights:
            if name not in self._shapes:
                raise ValueError(
                    f"weight {name!r} is unknown to the model; expected names like "
                    f"{next(iter(self._shapes))!r}"
                )
            if self._shapes[name] != tuple(tensor.shape):
                raise ValueError(
                    f"weight {name!r} has shape {tuple(tensor.shape)}; expected "
                    f"{self._shapes[name]}"
                )
            for other in self._ties.get(name, (name,)):
                if other in missing:
                    del missing[other]
                    yield other, tensor
        if missing:
            names = list(missing)
            raise ValueError(f"weights of {len(names)} names did not come: {names[:5]}")


def _ties(model: Any) -> dict[str, tuple[str, ...]]:
    """For each name of a weight with several names, all of them."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return {name: tuple(group) for group in names.values() if len(group) > 1 for name in group}
