import copy
import dataclasses
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tiny_models import FAMILIES, tiny_model
from vpo_lightning.core.seeding import counter_uniform
from vpo_lightning.core.types import TokenBatch
from vpo_lightning.errors import ConfigError
from vpo_lightning.parsing import StopRule
from vpo_lightning.policy.forward import completion_logprobs
from vpo_lightning.policy.loading import save_model_folder
from vpo_lightning.policy.scratch import word_tokenizer
from vpo_lightning.rollout.engine import Completion, GenerationRequest, SamplingSettings
from vpo_lightning.rollout.hf_engine import HFEngine

F64 = torch.float64
WORDS = word_tokenizer(["|", *(f"w{i}" for i in range(36))])
SAMPLING = SamplingSettings(max_tokens=12)


def requests(
    count: int = 5, group: int = 4, *, stop: StopRule | None = None, seed: int = 0
) -> list[GenerationRequest]:
    """Prompts of 1 to 9 tokens, some of equal length."""
    rng = Random(seed)
    return [
        GenerationRequest(
            id=f"p{i}",
            prompt_ids=[rng.randrange(3, 40) for _ in range(rng.randint(1, 9))],
            seeds=[rng.randrange(2**63) for _ in range(group)],
            stop=stop,
        )
        for i in range(count)
    ]


def engine(model: Any, **kwargs: Any) -> HFEngine:
    return HFEngine.from_model(model, WORDS, **kwargs)


def flat(groups: list[list[Completion]]) -> list[Completion]:
    return [completion for group in groups for completion in group]


def outcome(groups: list[list[Completion]]) -> list[tuple[list[int], str]]:
    """Ids and how they ended: what must be equal to the last bit in float64."""
    return [(completion.ids, completion.finish_reason) for completion in flat(groups)]


def token_batch(asked: list[GenerationRequest], groups: list[list[Completion]]) -> TokenBatch:
    completions = [(i, c) for i, group in enumerate(groups) for c in group]

    def padded(rows: list[list[int]]) -> Tensor:
        width = max(len(row) for row in rows)
        return torch.tensor([row + [0] * (width - len(row)) for row in rows])

    return TokenBatch(
        prompt_ids=padded([list(r.prompt_ids) for r in asked]),
        prompt_lengths=torch.tensor([len(r.prompt_ids) for r in asked]),
        completion_ids=padded([c.ids for _, c in completions]),
        completion_lengths=torch.tensor([len(c.ids) for _, c in completions]),
        prompt_index=torch.tensor([i for i, _ in completions]),
    )


def largest_difference(
    model: Any, asked: list[GenerationRequest], groups: list[list[Completion]], temperature: float
) -> float:
    """Between the engine's log-probabilities and those of a separate forward pass."""
    batch = token_batch(asked, groups)
    with torch.no_grad():
        expected, _ = completion_logprobs(
            model, batch, temperature=temperature, share_prompts=False
        )
    got = [c.logprobs for group in groups for c in group]
    return max(
        abs(value - float(expected[i, t]))
        for i, row in enumerate(got)
        for t, value in enumerate(row)
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_a_separate_forward_pass(family: str, attention: str) -> None:
    model = tiny_model(family, attn_implementation=attention)
    asked = requests()
    for temperature in (1.0, 0.7):
        sampling = dataclasses.replace(SAMPLING, temperature=temperature)
        groups = engine(model).generate(asked, sampling)
        assert {len(c.ids) for g in groups for c in g} > {12}  # ragged ends
        assert largest_difference(model, asked, groups, temperature) < 2e-5


def test_ids_are_those_of_the_simplest_possible_loop() -> None:
    """One row at a time, the whole row through the model for each token, no cache, no padding."""
    model = tiny_model("qwen3", F64)
    asked = requests(count=3, group=3)
    for request, group in zip(asked, engine(model).generate(asked, SAMPLING), strict=True):
        for seed, completion in zip(request.seeds, group, strict=True):
            numbers = counter_uniform(torch.tensor([seed]), SAMPLING.max_tokens)[0]
            ids: list[int] = []
            while len(ids) < SAMPLING.max_tokens and (not ids or ids[-1] != 1):
                row = torch.tensor([[*request.prompt_ids, *ids]])
                with torch.no_grad():
                    chances = model(input_ids=row).logits[0, -1].softmax(-1)
                ids.append(int((chances.cumsum(0) <= numbers[len(ids)]).sum()))
            assert completion.ids == ids
            assert completion.finish_reason == ("eos" if ids[-1] == 1 else "length")


@pytest.mark.parametrize("batch_tokens", [21, 50, 128, 10**6])
def test_ids_do_not_depend_on_how_the_batch_is_split(batch_tokens: int) -> None:
    model, asked = tiny_model("qwen3", F64), requests()
    whole = engine(model).generate(asked, SAMPLING)
    split = engine(model, batch_tokens=batch_tokens).generate(asked, SAMPLING)
    assert outcome(split) == outcome(whole)
    for a, b in zip(flat(whole), flat(split), strict=True):
        # transformers computes norms in float32, also in a float64 model.
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-6)


def test_ids_do_not_depend_on_what_else_is_asked() -> None:
    model, asked = tiny_model("qwen3", F64), requests()
    hf = engine(model)
    whole = {
        r.id: [c.ids for c in g] for r, g in zip(asked, hf.generate(asked, SAMPLING), strict=True)
    }
    shuffled = [asked[i] for i in (3, 0, 4, 1, 2)]
    for request, group in zip(shuffled, hf.generate(shuffled, SAMPLING), strict=True):
        assert [c.ids for c in group] == whole[request.id]
    for request in asked:
        backwards = dataclasses.replace(request, seeds=request.seeds[::-1])
        [group] = hf.generate([backwards], SAMPLING)
        assert [c.ids for c in group] == whole[request.id][::-1]


def test_a_longer_limit_only_continues_truncated_completions() -> None:
    model, asked = tiny_model("qwen3", F64), requests()
    short = engine(model).generate(asked, SAMPLING)
    long = engine(model).generate(asked, SamplingSettings(max_tokens=30))
    for a, b in zip(flat(short), flat(long), strict=True):
        assert b.ids[: len(a.ids)] == a.ids
        assert (a.finish_reason == "length") == (len(b.ids) > len(a.ids))


def test_greedy_decoding_is_that_of_transformers() -> None:
    model: Any = tiny_model()
    asked = requests(count=6, group=1)
    groups = engine(model).generate(asked, SamplingSettings(max_tokens=12, temperature=0.0))
    for request, [completion] in zip(asked, groups, strict=True):
        prompt = torch.tensor([request.prompt_ids])
        expected = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
        )[0, prompt.shape[1] :]
        assert completion.ids == expected.tolist()
    assert largest_difference(model, asked, groups, 1.0) < 2e-5


def test_first_tokens_are_distributed_as_the_model_says() -> None:
    model = tiny_model()
    prompt = [5, 8, 13]
    count = 20_000
    [group] = engine(model, batch_tokens=10**6).generate(
        [GenerationRequest("p", prompt, range(count))], SamplingSettings(max_tokens=1)
    )
    counts = torch.bincount(torch.tensor([c.ids[0] for c in group]), minlength=40).double()
    with torch.no_grad():
        expected = (
            model(input_ids=torch.tensor([prompt])).logits[0, -1].double().softmax(-1) * count
        )
    likely = expected > 5
    chi2 = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    # Mean and deviation of chi-squared: n and sqrt(2 n); the seeds are fixed.
    n = int(likely.sum()) - 1
    assert n > 5
    assert abs(chi2 - n) < 4 * (2 * n) ** 0.5


def test_the_support_is_restricted_and_logprobs_are_renormalised() -> None:
    model, asked = tiny_model(), requests()
    settings = dataclasses.replace(SAMPLING, top_k=2)
    groups = engine(model).generate(asked, settings)
    for request, group in zip(asked, groups, strict=True):
        for completion in group:
            row = torch.tensor([[*request.prompt_ids, *completion.ids]])
            with torch.no_grad():
                logits = model(input_ids=row).logits[0, len(request.prompt_ids) - 1 : -1]
            best, ids = logits.topk(2)
            for t, token in enumerate(completion.ids):
                place = ids[t].tolist().index(token)
                expected = float(best[t].log_softmax(-1)[place])
                assert completion.logprobs[t] == pytest.approx(expected, abs=2e-5)


def test_every_end_of_sequence_token_ends_a_completion() -> None:
    model = tiny_model()
    model.generation_config.eos_token_id = [7, 8, 9, 10]
    groups = engine(model).generate(requests(), SamplingSettings(max_tokens=40))
    ends = {1, 7, 8, 9, 10}  # 1 is the tokenizer's own
    last = set()
    for completion in flat(groups):
        assert not ends & set(completion.ids[:-1])
        assert (completion.finish_reason == "eos") == (completion.ids[-1] in ends)
        last.add(completion.ids[-1])
    assert len(last & ends) > 2


@pytest.mark.parametrize("rule", [StopRule("|"), StopRule("|", 3), StopRule("w1 w"), StopRule("5")])
def test_a_completion_stops_with_the_token_that_completes_the_stop_rule(rule: StopRule) -> None:
    model = tiny_model("qwen3", F64)
    head: Any = model.get_output_embeddings()
    with torch.no_grad():
        head.weight[1] = 0.0  # a logit of 0: end-of-sequence tokens are rare
    free = engine(model).generate(requests(), SamplingSettings(max_tokens=100))
    stopped = engine(model).generate(requests(stop=rule), SamplingSettings(max_tokens=100))
    reasons = set()
    for unbound, completion in zip(flat(free), flat(stopped), strict=True):
        prefixes = (unbound.ids[:n] for n in range(1, len(unbound.ids) + 1))
        texts = [(ids, WORDS.decode(ids, skip_special_tokens=True)) for ids in prefixes]
        hits = [ids for ids, text in texts if text.count(rule.text) >= rule.count]
        assert completion.ids == (hits[0] if hits else unbound.ids)
        assert completion.finish_reason == ("stop" if hits else unbound.finish_reason)
        assert completion.text == WORDS.decode(completion.ids, skip_special_tokens=True)
        reasons.add(completion.finish_reason)
    assert "stop" in reasons


def test_requests_with_different_stop_rules_share_a_batch() -> None:
    model, asked = tiny_model("qwen3", F64), requests(count=3)
    rules = [None, StopRule("|"), StopRule("w1 w")]
    mixed = [dataclasses.replace(r, stop=rule) for r, rule in zip(asked, rules, strict=True)]
    hf = engine(model)
    together = hf.generate(mixed, SamplingSettings(max_tokens=40))
    for request, group in zip(mixed, together, strict=True):
        alone = hf.generate([request], SamplingSettings(max_tokens=40))
        assert outcome([group]) == outcome(alone)


def test_a_prompt_is_read_once_and_finished_rows_are_dropped() -> None:
    model, asked = tiny_model(), requests(count=5, group=8)
    hf = engine(model)
    read: list[tuple[int, ...]] = []
    hf._model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: read.append(tuple(inputs[0].shape))
    )
    groups = hf.generate(asked, SamplingSettings(max_tokens=60))
    assert read[0] == (5, max(len(r.prompt_ids) for r in asked))
    rows = [shape[0] for shape in read[1:]]
    assert all(shape[1] == 1 for shape in read[1:])
    assert rows == sorted(rows, reverse=True)
    lengths = [len(c.ids) for group in groups for c in group]
    for t, computed in enumerate(rows, start=1):
        running = sum(length > t for length in lengths)
        assert running <= computed <= running / 0.85 + 1


def test_sampling_leaves_the_global_generator_alone() -> None:
    hf = engine(tiny_model())
    state = torch.get_rng_state()
    hf.generate(requests(), SAMPLING)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_engine_owns_its_weights() -> None:
    model, asked = tiny_model(), requests()
    hf = engine(model)
    before = hf.generate(asked, SAMPLING)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert hf.generate(asked, SAMPLING) == before
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_new_weights_give_what_a_fresh_engine_gives(tied: bool) -> None:
    old, new = (tiny_model(seed=seed, tie_word_embeddings=tied) for seed in (0, 1))
    asked = requests()
    hf = engine(old)
    before = hf.generate(asked, SAMPLING)
    hf.load_weights(new.state_dict().items(), version=7)
    after = hf.generate(asked, SAMPLING)
    assert hf.version == 7
    assert after == engine(new).generate(asked, SAMPLING) != before
    assert largest_difference(new, asked, after, 1.0) < 2e-5


def test_a_tied_weight_may_come_under_one_of_its_names() -> None:
    old, new = (tiny_model(seed=seed, tie_word_embeddings=True) for seed in (0, 1))
    hf = engine(old)
    hf.load_weights(new.named_parameters(), version=1)  # without lm_head.weight
    asked = requests()
    assert hf.generate(asked, SAMPLING) == engine(new).generate(asked, SAMPLING)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("lm_head.weight"), "did not come.*lm_head.weight"),
        (lambda weights: weights.update(extra=torch.zeros(1)), "'extra' is unknown"),
        (
            lambda weights: weights.update({"lm_head.weight": torch.zeros(3, 32)}),
            r"lm_head.weight.*\(3, 32\).*\(40, 32\)",
        ),
    ],
)
def test_incomplete_weights_are_an_error_until_complete_ones_come(
    change: Any, message: str
) -> None:
    model = tiny_model()
    hf = engine(model)
    weights = dict(copy.deepcopy(model.state_dict()))
    change(weights)
    with pytest.raises(ValueError, match=message):
        hf.load_weights(weights.items(), version=1)
    assert hf.version == 0
    with pytest.raises(RuntimeError, match="mixture of two versions"):
        hf.generate(requests(), SAMPLING)
    hf.load_weights(model.state_dict().items(), version=2)
    assert hf.generate(requests(), SAMPLING)
    assert hf.version == 2


def test_requests_that_do_not_fit_are_refused_with_the_key() -> None:
    hf = engine(tiny_model(), batch_tokens=100)
    long = GenerationRequest("long", [5] * 90, [1])
    with pytest.raises(ConfigError, match=r"long.*128 positions.*rollout\.sampling\.max_tokens"):
        hf.generate([long], SamplingSettings(max_tokens=39))
    with pytest.raises(ConfigError, match=r"long.*engine\.batch_tokens=100"):
        hf.generate([long], SamplingSettings(max_tokens=38))
    with pytest.raises(ValueError, match="empty: the prompt has no tokens"):
        hf.generate([GenerationRequest("empty", [], [1])], SAMPLING)


def test_nothing_asked_gives_nothing() -> None:
    hf = engine(tiny_model())
    assert hf.generate([], SAMPLING) == []
    assert hf.generate([GenerationRequest("p", [5], [])], SAMPLING) == [[]]


@pytest.mark.parametrize(
    "settings",
    [
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
        {"final_logit_softcapping": 30.0},
        {"attn_implementation": "flex_attention"},
    ],
)
def test_models_the_loop_would_compute_wrongly_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"engine=hf|engine\.attention"):
        engine(tiny_model(**settings))


def test_bfloat16_stays_near_its_own_forward_pass() -> None:
    model, asked = tiny_model(dtype=torch.bfloat16), requests()
    groups = engine(model).generate(asked, SAMPLING)
    # bfloat16 has 8 bits: logits of 10 are off by up to .03 in each of two passes.
    assert largest_difference(model, asked, groups, 1.0) < 0.3


def test_a_folder_gives_what_its_model_gives(tmp_path: Path) -> None:
    model, asked = tiny_model(), requests(stop=StopRule("|", 2))
    folder = save_model_folder(model, WORDS, tmp_path / "model")
    hf = HFEngine(folder, dtype="float32", device="cpu")
    assert hf.generate(asked, SAMPLING) == engine(model).generate(asked, SAMPLING)
    hf.close()
    with pytest.raises(RuntimeError):
        hf.generate(asked, SAMPLING)
