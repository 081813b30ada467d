"""Initialization, stacking, log U and the squashed Gaussian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import layers, networks
from tests.networks import constant, with_bias


@pytest.mark.parametrize("shape", [(64, 64), (5, 64), (64, 1), (3, 2)])
def test_orthogonal_columns_or_rows(shape):
    weights = layers.orthogonal(10.0)(jax.random.key(0), shape)
    gram = weights @ weights.T if shape[0] < shape[1] else weights.T @ weights
    np.testing.assert_allclose(gram, 100.0 * np.eye(len(gram)), atol=2e-3)


def test_orthogonal_entries_are_uniformly_directed():
    # A row of a uniformly distributed orthogonal n x n matrix has mean 0 and variance 1 / n.
    draw = jax.vmap(lambda key: layers.orthogonal(1.0)(key, (8, 8)))
    weights = draw(jax.random.split(jax.random.key(1), 2_000))
    np.testing.assert_allclose(weights.mean(0), 0.0, atol=0.04)
    np.testing.assert_allclose(weights.var(0), 1 / 8, atol=0.02)


def test_members_start_different():
    module = layers.MLP((4,), 1, stack=(3, 2))
    kernel = module.init(jax.random.key(0), jnp.zeros((1, 5)))["params"]["Dense_0"]["kernel"]
    flat = np.asarray(kernel).reshape(6, -1)
    assert len(np.unique(flat[:, 0])) == 6


def test_stacked_critic_equals_each_critic_alone():
    stacked = networks.Critic((16,), num_groups=3, num_critics=2)
    observation = jax.random.normal(jax.random.key(1), (3, 7, 4))
    action = jax.random.normal(jax.random.key(2), (3, 7, 2))
    params = stacked.init(jax.random.key(0), observation, action)
    q = networks.apply(stacked, params, observation, action)
    assert q.shape == (3, 2, 7)
    alone = networks.Critic((16,), num_groups=1, num_critics=1)
    for i in range(3):
        for j in range(2):
            own = jax.tree.map(lambda x, i=i, j=j: x[i : i + 1, j : j + 1], params)
            expected = networks.apply(alone, own, observation[i], action[i])
            np.testing.assert_allclose(q[i, j], expected[0, 0], rtol=1e-5, atol=1e-6)


def test_log_u_is_symexp_of_softplus():
    # The identity that UNet relies on: symexp(softplus(x)) = e^x.
    x = jnp.linspace(-20.0, 20.0, 81)
    np.testing.assert_allclose(jnp.expm1(jax.nn.softplus(x)), jnp.exp(x), rtol=2e-4, atol=1e-6)


def test_sqrt_u_has_finite_gradients_from_zero_to_overflow():
    unet = networks.UNet((8,))
    observation, action = jnp.ones((4, 3)), jnp.ones((4, 1))
    params = unet.init(jax.random.key(0), observation, action)
    for bias in (-200.0, 0.0, 200.0):
        moved = with_bias(params, bias)

        def std(action, moved=moved):
            log_u = networks.apply(unet, moved, observation, action)
            return jnp.sum(networks.to_std(log_u))

        value, grad = jax.value_and_grad(std)(action)
        assert np.isfinite(value)
        assert np.isfinite(grad).all()


def test_log_prob_matches_the_change_of_variables():
    # log N(x) - log(1 - tanh(x)^2), in float64 NumPy, at moderate x.
    actor = networks.Actor((8,), 2)
    observation = jax.random.normal(jax.random.key(0), (5, 3))
    params = actor.init(jax.random.key(1), observation)
    action, log_prob = networks.sample_action(actor, params, observation, jax.random.key(2))
    mean, log_std = (np.asarray(x, np.float64) for x in networks.apply(actor, params, observation))
    x = np.arctanh(np.asarray(action, np.float64))
    density = -0.5 * ((x - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    expected = (density - np.log1p(-(np.tanh(x) ** 2))).sum(-1)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-3, atol=1e-3)


def test_saturated_actions_have_finite_log_prob_and_gradient():
    actor = networks.Actor((8,), 1)
    observation = jnp.ones((6, 3))
    params = with_bias(actor.init(jax.random.key(0), observation), [50.0, 0.0])

    def objective(params):
        action, log_prob = networks.sample_action(actor, params, observation, jax.random.key(1))
        return jnp.sum(log_prob), action

    (value, action), grads = jax.value_and_grad(objective, has_aux=True)(params)
    np.testing.assert_array_equal(action, 1.0)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_critics_begin_with_their_gain():
    one, three = (networks.Critic((8,), 2, 1, gain) for gain in (1.0, 3.0))
    given = jax.random.key(0), jnp.ones((1, 3)), jnp.ones((1, 2))
    scaled = jax.tree.map(lambda x: 3.0 * x, one.init(*given))
    jax.tree.map(np.testing.assert_allclose, three.init(*given), scaled)


@pytest.mark.parametrize(("said", "kept"), [(-50.0, -20.0), (0.5, 0.5), (9.0, 2.0)])
def test_standard_deviations_of_the_policy_stay_in_their_range(said, kept):
    actor, observation = networks.Actor((8,), 1), jnp.ones((1, 3))
    params = constant(actor.init(jax.random.key(0), observation), [0.0, said])
    _, log_std = networks.apply(actor, params, observation)
    np.testing.assert_array_equal(log_std, kept)
