"""Every method under both presets against plain loops written from the formulas, on odd input."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from vpo_lightning import methods
from vpo_lightning.rollout.credit import Method, reward_tensors, set_rewards
from vpo_lightning.rollout.credit import advantages as credited

FILES = methods.ablation_files()
EPS = 1e-6
Array = Any
Groups = list[list[Array]]  # of each group, of each rollout: answers (n, K)


def rounded(rng: np.random.Generator, *shape: int) -> Array:
    """Quarters: full of ties."""
    return rng.integers(0, 5, shape) / 4


def uniform(rng: np.random.Generator, *shape: int) -> Array:
    return rng.random(shape)


def huge(rng: np.random.Generator, *shape: int) -> Array:
    return 1e7 * rng.random(shape)


def signed(rng: np.random.Generator, *shape: int) -> Array:
    return 4 * rng.random(shape) - 2


def equal(rng: np.random.Generator, *shape: int) -> Array:
    return np.full(shape, 0.7)


def unparsed(rng: np.random.Generator, *shape: int) -> Array:
    return np.zeros(shape)


VALUES = {f.__name__: f for f in (rounded, uniform, huge, signed, equal, unparsed)}


def z_norm(x: Array, ddof: int, floor: float, single: float) -> Array:
    if len(x) == 1:
        return x * single / (1 + EPS)
    if (x == x[0]).all() or x.std(ddof=ddof) < floor:
        return np.zeros_like(x)
    return (x - x.mean()) / (x.std(ddof=ddof) + EPS)


def subsets_with(i: int, n: int, k: int) -> list[tuple[int, ...]]:
    return [s for s in itertools.combinations(range(n), k) if i in s]


def max_at_k(x: Array, preset: dict[str, Any]) -> Array:
    n = len(x)
    if n == 1:
        return np.zeros(1)
    k = max(2, n // 2)
    g = [sum(max(x[list(s)]) for s in subsets_with(i, n, k)) / math.comb(n, k) for i in range(n)]
    # Sums in another order differ in the last bit: equal means equal to twelve digits.
    g = np.array(g)
    if np.ptp(g) <= 1e-12 * np.abs(g).max():
        return np.zeros(n)
    return z_norm(g, preset["ddof"], preset["floor"], 0.0)


def pkpo(x: Array, k: int = 2) -> Array:
    found = np.zeros(len(x))
    for i in range(len(x) if len(x) > 1 else 0):
        sets = list(itertools.combinations([j for j in range(len(x)) if j != i], k - 1))
        found[i] = np.mean([max(x[i], *x[list(s)]) - max(x[list(s)]) for s in sets])
    return found


def pass_at_k(x: Array, preset: dict[str, Any]) -> Array:
    found = np.zeros(len(x))
    if len(x) > 1:
        first, second = np.argsort(-x, kind="stable")[:2]
        found[first] = (x[first] - x[second]) / (x.std(ddof=preset["ddof"]) + EPS)
    return found


def leave_one_out(x: Array) -> Array:
    found = np.zeros(len(x))
    for i in range(len(x) if len(x) > 2 else 0):
        others = np.delete(x, i)
        if not (others == others[0]).all() and others.std(ddof=1) >= 1e-6:
            found[i] = (x[i] - others.mean()) / (others.std(ddof=1) + EPS)
    return found


def maxrl(x: Array, preset: dict[str, Any]) -> Array:
    if len(x) == 1:
        return x * preset["single"] / EPS
    if (x == x[0]).all() or x.mean() < preset["floor"] or x.mean() <= 0:
        return np.zeros_like(x)
    return (x - x.mean()) / (x.mean() + EPS)


def rloo(x: Array) -> Array:
    return np.array([x[i] - np.delete(x, i).mean() if len(x) > 1 else 0.0 for i in range(len(x))])


ESTIMATORS: dict[str, Callable[[Array, dict[str, Any]], Array]] = {
    "dr_grpo": lambda x, p: x - x.mean() if len(x) > 1 else x * p["single"],
    "grpo_leave_one_out": lambda x, p: leave_one_out(x),
    "max_at_k": max_at_k,
    "maxrl": maxrl,
    "pass_at_k": pass_at_k,
    "pkpo": lambda x, p: pkpo(x),
    "rloo": lambda x, p: rloo(x),
}
PRESETS: dict[str, dict[str, Any]] = {
    "matched": {"ddof": 0, "floor": 1e-6, "single": 0.0},
    "official": {"ddof": 1, "floor": 0.0, "single": 1.0},
}


def scores(name: str, group: list[Array], weights: Array) -> Array:
    """The set rewards of a group of rollouts under its draws (N, K)."""
    if name.endswith("_pool") or name == "vpo_pool_credit":
        return pool_credit(group, weights)
    if name == "diversity_bonus":
        return diversity_bonus(group, weights)
    if name == "vpo_exact":
        return np.array([exact_of_two_objectives(answers) for answers in group])
    found = np.zeros(len(group))
    for i, answers in enumerate(group):
        if len(answers):
            values = np.array([[value(name, w, r) for r in answers] for w in weights])
            over = values.sum(1) if name == "multi_rlvr" else values.max(1)
            found[i] = over.mean()
    return found


def value(name: str, w: Array, r: Array) -> float:
    return min(w * r) if name == "vpo_chebyshev" else float(w @ r)


def pool_credit(group: list[Array], weights: Array) -> Array:
    found = np.zeros(len(group))
    for w in weights:
        best = [max((float(w @ r) for r in answers), default=-np.inf) for answers in group]
        if max(best) > -np.inf:
            winners = [i for i, b in enumerate(best) if b >= max(best) - 1e-12 * abs(max(best))]
            for i in winners:
                found[i] += max(best) / len(weights) / len(winners)
    return found


def diversity_bonus(group: list[Array], weights: Array) -> Array:
    pool = [(i, r) for i, answers in enumerate(group) for r in answers]
    per_rollout: list[list[float]] = [[] for _ in group]
    for a, (i, r) in enumerate(pool):
        others = [np.abs(r - s).sum() for b, (_, s) in enumerate(pool) if b != a]
        distance = np.mean(others) if others else 0.0
        per_rollout[i].append(float(weights.mean(0) @ r + 0.5 * distance))
    return np.array([np.mean(x) if x else 0.0 for x in per_rollout])


def exact_of_two_objectives(answers: Array) -> float:
    """The integral over w in [0, 1] of a maximum of lines: the trapezoid rule between all kinks."""
    if len(answers) == 0:
        return 0.0
    if answers.shape[1] == 1:
        return float(answers.max())
    kinks = {0.0, 1.0}
    for a, b in itertools.combinations(answers, 2):
        slope = (a - b)[0] - (a - b)[1]
        if slope != 0 and 0 < -(a - b)[1] / slope < 1:
            kinks.add(-(a - b)[1] / slope)
    w = np.array(sorted(kinks))
    tops = np.array([max(x * r[0] + (1 - x) * r[1] for r in answers) for x in w])
    return float(((tops[1:] + tops[:-1]) / 2 * np.diff(w)).sum())


def gdpo(groups: Groups, weights: list[Array], lengths: Array, name: str) -> Array:
    """Groups with single answers; K may differ between groups."""
    sums = np.zeros((len(groups), len(groups[0])))
    for b, group in enumerate(groups):
        r = np.array([answers[0] for answers in group])
        for k in range(r.shape[1]):
            x = r[:, k]
            if len(x) == 1:
                z = np.zeros(1) if name == "matched" else x / (1 + EPS)
            elif (x == x[0]).all() or (name == "matched" and x.std() < 1e-6):
                z = np.zeros_like(x)
            elif name == "matched":
                z = (x - x.mean()) / x.std()
            else:
                z = (x - x.mean()) / (x.std(ddof=1) + EPS)
            sums[b] += weights[b].mean(0)[k] * z
    if name == "matched":
        flat = sums.std() < 1e-6
        return np.zeros_like(sums) if flat else (sums - sums.mean()) / sums.std()
    tokens = np.repeat(sums.ravel(), lengths.ravel())
    return (sums - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)


def expected(name: str, preset: str, groups: Groups, weights: list[Array], lengths: Array) -> Array:
    if name == "gdpo":
        return gdpo(groups, weights, lengths, preset)
    settings = PRESETS[preset]
    if name.startswith("vpo"):  # the same in both presets
        settings = PRESETS["matched"]
    estimator = ESTIMATORS.get(name, lambda x, p: z_norm(x, p["ddof"], p["floor"], p["single"]))
    found = [scores(name, group, w) for group, w in zip(groups, weights, strict=True)]
    return np.array([estimator(x, settings) for x in found])


def odd_groups(name: str, method: Method, kind: str, seed: int) -> tuple[Groups, int]:
    """Three groups whose numbers of objectives and answers differ."""
    rng = np.random.default_rng(seed)
    size = (1, 2, 3, 4, 5)[seed % 5]
    if name == "max_at_k" and size == 2:
        size = 3
    most = 1 if method.prompt.num_answers == 1 else 3
    widths = (1, 2, 2) if name == "vpo_exact" else (1, 2, 4)
    return [
        [
            VALUES[kind](rng, most if most == 1 else int(rng.integers(0, most + 1)), width)
            for _ in range(size)
        ]
        for width in widths
    ], size


def found_by_us(
    method: Method, groups: Groups, lengths: Array, seed: int
) -> tuple[Array, list[Array]]:
    """The advantages and the draws that the method made."""
    counts = torch.tensor([group[0].shape[1] for group in groups])
    if method.weights is None:
        weights = torch.zeros(len(groups), 1, int(counts.max()), dtype=torch.float64)
        for b, count in enumerate(counts.tolist()):
            shares = torch.arange(count, dtype=torch.float64)  # the first objective counts nothing
            shares = shares if count > 1 else shares + 1
            weights[b, 0, :count] = shares / (shares.sum() if method.normalize_weights else 1)
    else:
        weights = method.weights(counts, torch.arange(len(groups)) + 10 * seed, step=1)
    matrices = [[answers.tolist() for answers in group] for group in groups]
    # The collector gives a rollout without answers a row of zeros only where tasks pad; here the
    # tensors are made by hand, so that absent answers are masked.
    padded = [
        [rows or [[0.0] * int(counts[b])] for rows in group] for b, group in enumerate(matrices)
    ]
    tensors = reward_tensors(
        padded, weights, torch.from_numpy(lengths), [f"p{b}" for b in range(len(groups))]
    )
    for b, group in enumerate(groups):
        for g, answers in enumerate(group):
            tensors.answer_mask[b, g, len(answers) :] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # groups of one
        values = set_rewards(method, tensors, 8)
        advantages = credited(method, values, tensors)
    draws = [w[:, :count].numpy() for w, count in zip(weights, counts.tolist(), strict=True)]
    return advantages.numpy(), draws


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_method_is_its_formula_on_odd_input(name: str, preset: str) -> None:
    method = methods.read_method(FILES[name], preset, {"m": 3, "trainer": {"max_steps": 5}})
    for seed, kind in itertools.product(range(5), VALUES):
        groups, size = odd_groups(name, method, kind, seed)
        lengths = np.random.default_rng(seed).integers(1, 9, (len(groups), size))
        found, draws = found_by_us(method, groups, lengths, seed)
        wanted = expected(name, preset, groups, draws, lengths)
        assert np.isfinite(found).all()
        scale = max(1.0, float(np.abs(wanted).max()))
        np.testing.assert_allclose(
            found, wanted, rtol=0, atol=2e-8 * scale, err_msg=f"{kind} {seed}"
        )
