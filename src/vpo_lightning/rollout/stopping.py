"""Where completions end: an end-of-sequence token, or the n-th occurrence of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Int64
from tokenizers.models import WordLevel
from torch import Tensor

from vpo_lightning.parsing import StopRule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# A window of decoded tokens starts this many tokens before the longest possible occurrence, because
# a tokenizer may decode the first token of a text differently (SentencePiece drops its space).
_MARGIN = 4


def end_ids(
    generation_eos: int | Sequence[int] | None, tokenizer: PreTrainedTokenizerBase
) -> frozenset[int]:
    """The tokens that end a sequence: those of the generation config, and the tokenizer's own.

    Args:
        generation_eos: ``eos_token_id`` of the generation config.
        tokenizer: Of the model.
    """
    named = [generation_eos] if isinstance(generation_eos, int) else list(generation_eos or ())
    own = tokenizer.eos_token_id
    return frozenset([*named, *([own] if isinstance(own, int) else [])])


class StopTexts:
    """What each token of a vocabulary means for a stop text; tables are made once per text.

    Args:
        tokenizer: Decodes tokens.
        vocabulary: Number of tokens the model can sample; ids beyond the tokenizer's decode to "".
        device: Where the tables live.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, vocabulary: int, device: torch.device
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._device = device
        self._token_texts: list[str] = []
        self._tables: dict[str, Tensor] = {}

    def is_within_tokens(self, text: str) -> bool:
        """Whether no occurrence of `text` can reach over two tokens.

        True for one printable ASCII character, and in a word tokenizer for any text without white
        space (its tokens are joined by spaces).
        """
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        is_word_level = backend is not None and isinstance(backend.model, WordLevel)
        is_one_character = len(text) == 1 and text.isascii()
        return text.split() == [text] and (is_one_character or is_word_level)

    def table(self, text: str) -> Int64[Tensor, " V"]:
        """How often each token contains `text`, or 1 where an occurrence may end in the token.

        The first if `is_within_tokens(text)`, else the second.
        """
        if text not in self._tables:
            texts = self.token_texts()
            if self.is_within_tokens(text):
                values = [token.count(text) for token in texts]
            elif text[-1].isascii() and not text[-1].isspace():
                values = [int(text[-1] in token) for token in texts]
            else:
                values = [1] * len(texts)
            self._tables[text] = torch.tensor(values, device=self._device)
        return self._tables[text]

    def token_texts(self) -> list[str]:
        """The text of every token alone, "" for special tokens."""
        if not self._token_texts:
            known = min(len(self._tokenizer), self._vocabulary)
            ids = [[i] for i in range(known)]
            self._token_texts = self.decode(ids) + [""] * (self._vocabulary - known)
        return self._token_texts

    def decode(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of token ids, without special tokens."""
        return self._tokenizer.batch_decode(
            [list(row) for row in rows],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )


class StopWatch:
    """Counts the stop texts of the rows of a batch while they grow.

    Args:
        texts: Tables of the vocabulary.
        rules: The rule of each row, None for no rule.
    """

    def __init__(self, texts: StopTexts, rules: Sequence[StopRule | None]) -> None:
        self._texts = texts
        self._rules = list(rules)
        self._is_watching = any(rule is not None for rule in rules)
        if not self._is_watching:
            return
        names = list(dict.fromkeys(rule.text for rule in rules if rule is not None))
        tables = [texts.table(name) for name in names]
        device = tables[0].device
        # The last table, of zeros, is for rows without a rule.
        self._tables = torch.stack([*tables, torch.zeros_like(tables[0])])
        self._row_tables = torch.tensor(
            [len(names) if rule is None else names.index(rule.text) for rule in rules],
            device=device,
        )
        is_counted = [texts.is_within_tokens(name) for name in names]
        self._needs_text = torch.tensor([not counted for counted in is_counted] + [False]).to(
            device
        )
        self._wanted = torch.tensor([rule.count if rule else 1 for rule in rules], device=device)
        self._counts = torch.zeros_like(self._wanted)

    def ended(
        self,
        ids: Int64[Tensor, " A"],
        rows: Int64[Tensor, " A"],
        sampled: Int64[Tensor, "R T"],
        length: int,
    ) -> Bool[Tensor, " A"]:
        """Whether each row has ended with the token it has just got.

        Args:
            ids: The new tokens.
            rows: The row of each new token.
            sampled: All tokens so far, the new ones included.
            length: Tokens so far.
        """
        if not self._is_watching:
            return torch.zeros_like(ids, dtype=torch.bool)
        kinds = self._row_tables[rows]
        hits = self._tables[kinds, ids]
        needs_text = self._needs_text[kinds]
        self._counts[rows] += torch.where(needs_text, 0, hits)
        ended = self._counts[rows] >= self._wanted[rows]
        for i in (needs_text & (hits > 0)).nonzero()[:, 0].tolist():
            row = int(rows[i])
            ended[i] = self._is_complete(self._rules[row], sampled[row, :length].tolist())
        return ended

    def _is_complete(self, rule: StopRule | None, ids: list[int]) -> bool:
        """Whether the text holds the rule's count; decodes a short window first.

        An occurrence that ends in the last token lies in a window of as many tokens as it has
        bytes; only when one is there is the whole completion decoded.
        """
        assert rule is not None
        window = len(rule.text.encode()) + _MARGIN
        if rule.text not in self._texts.decode([ids[-window:]])[0]:
            return False
        return self._texts.decode([ids])[0].count(rule.text) >= rule.count
