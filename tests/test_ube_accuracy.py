"""What is said of the accuracy of a result counts every system that was solved."""

import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax import ube

ONE = np.ones((1, 1))


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
