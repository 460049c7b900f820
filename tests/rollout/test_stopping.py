from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from vpo_lightning.parsing import StopRule
from vpo_lightning.policy.scratch import word_tokenizer
from vpo_lightning.rollout.stopping import StopTexts, StopWatch

CPU = torch.device("cpu")
CORPUS = ["<a_1>yes || no</a_1><a_2>no | yes</a_2>", "a|b ||| é|ü </a_3> naïve </a_2>"] * 20


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE whose tokens hold several characters, parts of tags and parts of letters."""
    backend: Any = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer: Any = BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")


WORDS = word_tokenizer(["|", "||", "</a_2>", *"abcdefg"])
BYTES = byte_tokenizer()


def first_end(tokenizer: Any, rule: StopRule, ids: list[int]) -> int | None:
    """The definition: the shortest prefix whose text holds the rule's count, or None."""
    for n in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:n], skip_special_tokens=True)
        if text.count(rule.text) >= rule.count:
            return n
    return None


def watched_ends(texts: StopTexts, rules: list[StopRule | None], ids: torch.Tensor) -> list[Any]:
    watch = StopWatch(texts, rules)
    rows = torch.arange(len(rules))
    ends: list[Any] = [None] * len(rules)
    for n in range(1, ids.shape[1] + 1):
        for row in watch.ended(ids[:, n - 1], rows, ids, n).nonzero()[:, 0].tolist():
            ends[row] = ends[row] or n
    return ends


RULES = [
    StopRule("|"),
    StopRule("|", 2),
    StopRule("||"),
    StopRule("</a_2>"),
    StopRule("</a_2>", 2),
    StopRule("é"),
    StopRule(" no"),
    StopRule("no "),
    StopRule("a|b", 2),
]
# Pieces that make stop texts likely, whole, in parts and over token borders.
PIECES = ["|", "||", "</a_2>", "</a_", "2>", "é", "a|b", " no", " ", "a", "</a_3>", "ü", "<"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.text}x{rule.count}")
@given(pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=14), cut=st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_a_row_ends_with_the_token_that_completes_the_count(
    rule: StopRule, pieces: list[str], cut: int
) -> None:
    ids: list[int] = []
    for piece in pieces:  # each piece alone, so that one text is spelled in several ways
        ids += BYTES(piece)["input_ids"]  # type: ignore[operator]
    ids = ids[cut:] or ids
    texts = StopTexts(BYTES, len(BYTES), CPU)
    # The first row has no rule and must not be disturbed by the second.
    ends = watched_ends(texts, [None, rule], torch.tensor([ids, ids]))
    assert ends == [None, first_end(BYTES, rule, ids)]


@given(st.lists(st.integers(0, len(WORDS) - 1), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_words_are_counted_as_in_the_text(ids: list[int]) -> None:
    texts = StopTexts(WORDS, len(WORDS), CPU)
    rules = [StopRule("|", 3), StopRule("</a_2>"), StopRule("a b"), StopRule("||", 2)]
    ends = watched_ends(texts, list(rules), torch.tensor([ids] * len(rules)))
    assert ends == [first_end(WORDS, rule, ids) for rule in rules]


def test_counting_ids_is_used_only_where_it_is_exact() -> None:
    words, bytes_ = (StopTexts(t, len(t), CPU) for t in (WORDS, BYTES))
    assert words.is_within_tokens("|")
    assert words.is_within_tokens("</a_2>")
    assert not words.is_within_tokens("a b")
    assert bytes_.is_within_tokens("|")
    assert not bytes_.is_within_tokens("</a_2>")
    assert not bytes_.is_within_tokens("é")
    assert not bytes_.is_within_tokens(" ")
    # A token of two bars counts twice.
    double = WORDS.convert_tokens_to_ids("||")
    assert words.table("|")[double] == 2


def test_special_tokens_and_ids_beyond_the_tokenizer_have_no_text() -> None:
    texts = StopTexts(WORDS, len(WORDS) + 5, CPU)
    assert texts.token_texts()[:3] == ["", "", ""]
    assert texts.token_texts()[-5:] == [""] * 5
    assert texts.table("|").shape == (len(WORDS) + 5,)


def test_the_whole_text_is_decoded_only_when_an_occurrence_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = StopTexts(BYTES, len(BYTES), CPU)
    ids = BYTES("some words > and > more " * 20 + "</a_2>")["input_ids"]
    texts.table("</a_2>")
    lengths: list[int] = []
    decode = texts.decode
    monkeypatch.setattr(
        texts, "decode", lambda rows: (lengths.extend(len(r) for r in rows), decode(rows))[1]
    )
    ends = watched_ends(texts, [StopRule("</a_2>")], torch.tensor([ids]))
    assert ends == [len(ids)]
    assert sum(length > 10 for length in lengths) == 1  # the text itself, once, at the end
    assert len(lengths) <= 45  # 40 tokens with ">", then the tag: not one decode per token
