"""What is said of the accuracy of a result counts every system that was solved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax import posterior, sparse, ube

ONE = np.ones((1, 1))


ROUNDED = {
    "exact": ube.solve_exact,
    "pombu": ube.solve_pombu,
    "upper_bound": ube.solve_upper_bound,
    "ensemble_variance": ube.ensemble_variance,
}


@pytest.mark.parametrize("solver", ROUNDED.values(), ids=ROUNDED)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_variances_that_are_small_beside_values_keep_their_digits(solver, is_sparse):
    # Values of 10,000, of which single precision resolves 0.001, are known up to 0.2.
    rng = np.random.default_rng(0)
    concentration = np.maximum(1e6 * rng.dirichlet(np.full(20, 0.5), 40), 1e-3)
    transition = np.stack([[rng.dirichlet(row) for row in concentration] for _ in range(8)])
    transition = transition.reshape(8, 20, 2, 20)
    reward = np.broadcast_to(10 + rng.normal(size=(20, 2)), (8, 20, 2))
    policy = np.full((20, 2), 0.5)
    with jax.enable_x64(True):
        expected = solver(transition, reward, policy, 0.999)
    given = jnp.asarray(transition, jnp.float32)
    result = solver(sparse.from_dense(given) if is_sparse else given, reward, policy, 0.999)
    assert result.v.dtype == jnp.float32
    np.testing.assert_allclose(result.v, expected.v, rtol=0.03)


def test_a_small_probability_of_the_end_counts_in_the_moments():
    # One end in a million steps: in float32, the rest of a row that is summed up may as well be 0.
    rng = np.random.default_rng(0)
    concentration = 1e6 * rng.dirichlet(np.full(21, 0.5), (20, 2))
    concentration[..., -1] = 1.0
    reward, policy = 10 + rng.normal(size=(20, 2)), np.full((20, 2), 0.5)

    def variance(dtype):
        belief = posterior.init(20, 2, concentration=concentration, dtype=dtype)
        known = jnp.full((20, 2), 1e12, dtype)
        belief = belief._replace(reward_mean=jnp.asarray(reward, dtype), reward_precision=known)
        return ube.solve_moments(belief, policy, 0.999).v

    with jax.enable_x64(True):
        expected = variance(jnp.float64)
    np.testing.assert_allclose(variance(jnp.float32), expected, rtol=0.01)


@pytest.mark.parametrize("solver", [ube.solve_exact, ube.solve_pombu, ube.solve_upper_bound])
def test_the_condition_is_also_that_of_a_mean_that_is_given(solver):
    # Members end at once; the mean that is given goes on for 1 / (1 - 0.9 * 0.9) steps.
    given = {"mean_transition": np.full((1, 1, 1), 0.9)}
    result = solver(np.zeros((2, 1, 1, 1)), np.ones((2, 1, 1)), ONE, 0.9, **given)
    np.testing.assert_allclose(result.condition, 1.0 / 0.19, rtol=1e-5)


def test_the_residual_is_also_that_of_the_propagated_variance():
    # Values are known well, while a variance of a million is propagated from everywhere.
    transition = np.random.default_rng(0).dirichlet(np.ones(6), (1, 5, 2))[..., :5]
    transition = transition.astype(np.float32)
    policy = np.full((5, 2), 0.5, np.float32)

    def residual(reward, least):
        rewards = np.full((1, 5, 2), reward, np.float32)
        result = ube.solve_exact(transition, rewards, policy, 0.9, min_local=least)
        return float(result.residual)

    assert residual(0.3, 1e6) > 1e3 * residual(0.3, 0.0) > 0.0
    # It is in units of the reward: expected steps, which are solved for with it, do not count.
    np.testing.assert_allclose(residual(0.3 * 2**-20, 0.0), 2**-20 * residual(0.3, 0.0))
    assert residual(0.0, 0.0) == 0.0


def test_the_condition_of_a_decomposition_is_that_of_the_mean_mdp():
    # 1 / (1 - 0.5) steps of the members' mean.
    transition = np.array([0.25, 0.75]).reshape(2, 1, 1, 1)
    result = ube.decompose(transition, jnp.ones((2, 1, 1)), ONE, 1.0)
    np.testing.assert_allclose(result.condition, 2.0, rtol=1e-5)
