"""Samplers of scalarization weights."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from vpo_lightning.core.scalarization import set_reward
from vpo_lightning.core.seeding import derive_seed, torch_generator
from vpo_lightning.core.simplex import log_gamma_quantile
from vpo_lightning.core.weights import (
    annealed_dirichlet,
    dirichlet,
    fixed,
    random_subset,
    sobol,
)

Sampler = Callable[..., torch.Tensor]
SAMPLERS: dict[str, Sampler] = {
    "fixed": fixed,
    "dirichlet": partial(dirichlet, num_draws=7),
    "dirichlet single": partial(dirichlet, num_draws=1),
    "dirichlet small alpha": partial(dirichlet, num_draws=7, alpha=0.3),
    "sobol": partial(sobol, num_draws=7),
    "sobol large alpha": partial(sobol, num_draws=7, alpha=4.0),
    "random_subset": partial(random_subset, num_draws=7),
    "annealed": partial(annealed_dirichlet, num_draws=7, total_steps=10),
}
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


def seeds(count: int) -> torch.Tensor:
    return torch.tensor([derive_seed(0, "weights", 4, f"prompt {i}") for i in range(count)])


@every_sampler
def test_a_generator_gives_one_matrix_on_the_simplex(sampler: Sampler) -> None:
    weights = sampler(5, torch_generator(3), step=2)
    assert weights.shape[-1] == 5
    assert weights.dim() == 2
    assert weights.dtype == torch.float64
    assert bool((weights >= 0).all())
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[:, 0]))


@every_sampler
def test_a_batch_of_seeds_equals_each_seed_alone(sampler: Sampler) -> None:
    groups = seeds(9)
    batch = sampler(4, groups, step=2)
    for row, seed in enumerate(groups):
        assert torch.equal(batch[row], sampler(4, seed, step=2))
        assert torch.equal(batch[row], sampler(4, groups[[row]], step=2)[0])


@every_sampler
def test_padding_does_not_change_a_groups_own_weights(sampler: Sampler) -> None:
    groups, counts = seeds(6), torch.tensor([3, 1, 7, 2, 7, 16])
    batch = sampler(counts, groups, step=2)
    assert batch.shape[-1] == 16
    for row, count in enumerate(counts.tolist()):
        assert torch.equal(batch[row, :, :count], sampler(count, groups[row], step=2))
        assert not bool(batch[row, :, count:].any())


@every_sampler
def test_the_same_seed_draws_the_same_and_a_generator_goes_on(sampler: Sampler) -> None:
    first, again = sampler(3, torch_generator(1)), sampler(3, torch_generator(1))
    assert torch.equal(first, again)
    generator = torch_generator(1)
    assert torch.equal(first, sampler(3, generator))
    if sampler is not fixed:
        assert not torch.equal(first, sampler(3, generator))


def test_batches_beyond_one_block_equal_their_rows() -> None:
    groups = seeds(300)
    batch = dirichlet(16, groups)
    for row in (0, 39, 40, 41, 299):
        assert torch.equal(batch[row], dirichlet(16, groups[row]))


def test_dirichlet_1_is_normalised_exponentials() -> None:
    from vpo_lightning.core.seeding import counter_uniform

    seed = torch.tensor(11)
    exponentials = -counter_uniform(seed, 3 * 5).reshape(3, 5).log()
    expected = (exponentials / exponentials.sum(0)).T
    torch.testing.assert_close(dirichlet(3, seed, num_draws=5), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("alpha", [1.0, 0.2, 3.5, (0.5, 1.0, 2.5, 8.0)])
@pytest.mark.parametrize("sampler", [dirichlet, sobol])
def test_draws_have_the_moments_of_the_dirichlet(
    sampler: Sampler, alpha: float | tuple[float, ...]
) -> None:
    concentration = torch.tensor([alpha] * 4 if isinstance(alpha, float) else alpha).double()
    total = concentration.sum()
    mean = concentration / total
    variance = mean * (1 - mean) / (total + 1)
    weights = sampler(4, seeds(64), alpha=alpha, num_draws=256).reshape(-1, 4)
    # 16384 draws: five standard errors of a mean.
    error = 5 * (variance / len(weights)).sqrt()
    assert bool(((weights.mean(0) - mean).abs() < error).all())
    torch.testing.assert_close(weights.var(0), variance, rtol=0.1, atol=0)


@pytest.mark.parametrize("alpha", [1.0, 0.4, 5.0])
def test_marginals_are_beta(alpha: float) -> None:
    weights = dirichlet(3, seeds(40), alpha=alpha, num_draws=100)[..., 0].reshape(-1)
    assert stats.kstest(weights.numpy(), stats.beta(alpha, 2 * alpha).cdf).pvalue > 1e-4


def test_a_tiny_alpha_gives_vertices_and_no_nan() -> None:
    weights = dirichlet(3, seeds(20), alpha=1e-4)
    assert bool(torch.isfinite(weights).all())
    torch.testing.assert_close(weights.sum(-1), torch.ones(20, 100, dtype=torch.float64))
    assert float((weights.amax(-1) > 0.999).double().mean()) > 0.99


@given(st.floats(1e-3, 300), st.floats(1e-12, 1 - 1e-12))
@settings(deadline=None)
def test_gamma_quantiles_invert_the_distribution_function(alpha: float, chance: float) -> None:
    found = float(log_gamma_quantile(*torch.tensor([[chance], [alpha]], dtype=torch.float64)))
    if found > -690:  # exp() stays a normal number
        # torch's incomplete gamma function has about nine digits for alpha > 20.
        assert math.isclose(
            float(special.gammainc(alpha, math.exp(found))), chance, rel_tol=1e-8, abs_tol=1e-14
        )
    else:
        small = (math.log(chance) + math.lgamma(alpha + 1)) / alpha
        assert math.isclose(found, small, rel_tol=1e-12)


def test_sobol_integrates_better_than_independent_draws() -> None:
    rewards = torch.eye(3, dtype=torch.float64).expand(200, 1, 3, 3)
    exact = (1 + 1 / 2 + 1 / 3) / 3
    errors = [
        float((set_reward(rewards, sampler(3, seeds(200), num_draws=128)) - exact).square().mean())
        for sampler in (sobol, dirichlet)
    ]
    assert math.sqrt(errors[0]) < math.sqrt(errors[1]) / 4
    bias = set_reward(rewards, sobol(3, seeds(200), num_draws=128)).mean() - exact
    assert abs(float(bias)) < 5 * math.sqrt(errors[0] / 200)


def test_random_subsets_are_uniform_over_all_of_them() -> None:
    weights = random_subset(3, seeds(70), num_draws=100).reshape(-1, 3)
    subsets = (weights > 0).long() @ torch.tensor([4, 2, 1])
    counts = torch.bincount(subsets, minlength=8)
    assert int(counts[0]) == 0
    chi2 = float(((counts[1:] - 1000.0).square() / 1000).sum())
    assert chi2 < stats.chi2.ppf(1 - 1e-5, df=6)
    sizes = (weights > 0).sum(-1, keepdim=True)
    torch.testing.assert_close(weights, (weights > 0) / sizes.double())


def test_subset_members_join_with_the_conditional_probabilities() -> None:
    # By hand for K = 2: first joins with 2/3; second always if the first did not, else 1/2.
    chances = dict.fromkeys(product(range(2), repeat=2), 0.0)
    chances[1, 1] = chances[1, 0] = 2 / 3 * 1 / 2
    chances[0, 1] = 1 / 3
    assert all(math.isclose(chances[key], 1 / 3) for key in ((1, 1), (1, 0), (0, 1)))
    many = random_subset(300, seeds(2))
    assert bool(torch.isfinite(many).all())
    assert 130 < float((many > 0).sum(-1).double().mean()) < 170


def test_fixed_weights_are_normalised_unless_told_otherwise() -> None:
    given_weights = [2.0, 1.0, 1.0]
    source = torch_generator(0)
    assert fixed(3, source, weights=given_weights).tolist() == [[0.5, 0.25, 0.25]]
    assert fixed(3, source, weights=given_weights, normalize=False).tolist() == [given_weights]
    assert fixed(4, source).tolist() == [[0.25] * 4]
    assert fixed(4, source, normalize=False).tolist() == [[1.0] * 4]
    assert fixed(2, seeds(3), weights=[1.0, 3.0]).shape == (3, 1, 2)


def test_annealing_moves_linearly_to_the_deployment_weights() -> None:
    source = seeds(3)
    sampler = partial(
        annealed_dirichlet, 2, source, total_steps=8, deployment_weights=[3.0, 1.0], num_draws=5
    )
    target = torch.tensor([0.75, 0.25], dtype=torch.float64)
    start = dirichlet(2, source, num_draws=5)
    assert torch.equal(sampler(step=0), start)
    torch.testing.assert_close(sampler(step=2), 0.75 * start + 0.25 * target)
    for step in (8, 80):
        torch.testing.assert_close(sampler(step=step), target.expand(3, 5, 2))


def test_no_groups_give_no_weights() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert dirichlet(3, empty).shape[0] == 0
    assert random_subset(3, empty).shape[0] == 0


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("sampler", [dirichlet, sobol])
def test_an_alpha_that_is_not_positive_is_refused(sampler: Sampler, alpha: float) -> None:
    with pytest.raises(ValueError, match=r"positive finite alpha.*weights\.alpha"):
        sampler(3, seeds(2), alpha=alpha)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(dirichlet, 3, alpha=[1.0, 2.0]), r"alpha has 2 entries for 3 objectives"),
        (partial(dirichlet, 3, num_draws=0), r"num_draws must be at least 1"),
        (partial(sobol, 3, num_draws=0), r"num_draws must be at least 1"),
        (partial(random_subset, 3, num_draws=0), r"num_draws must be at least 1"),
        (partial(dirichlet, 0), r"no objective"),
        (partial(fixed, 3, weights=[1.0, 1.0]), r"2 fixed weights were given for 3 objectives"),
        (partial(fixed, torch.tensor([2, 3]), weights=[1.0, 1.0]), r"for 2 to 3 objectives"),
        (partial(fixed, 2, weights=[1.0, -1.0]), r"not negative"),
        (partial(fixed, 2, weights=[0.0, 0.0]), r"not all 0"),
        (partial(fixed, 2, weights=[1.0, math.nan]), r"finite"),
        (partial(annealed_dirichlet, 2, total_steps=0), r"total_steps >= 1"),
        (partial(annealed_dirichlet, 2, total_steps=3, step=-1), r"step >= 0"),
    ],
)
def test_wrong_settings_are_refused_with_the_reason(call: Sampler, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(source=seeds(2))
