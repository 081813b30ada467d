"""Each equation at values worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax.qusac import losses, networks


def test_critic_target_by_hand():
    # min(3, 5) = 3; soft value 3 - 0.1 * (-2) = 3.2; y = 1 + 0.5 * 3.2 = 2.6, or 1 if terminated.
    next_q = jnp.array([[[3.0, 3.0], [5.0, 5.0]]])  # [1, 2, 2]
    target = losses.critic_target(
        jnp.array([[1.0, 1.0]]),
        jnp.array([[0.5, 0.0]]),
        next_q,
        jnp.array([[-2.0, -2.0]]),
        0.1,
    )
    np.testing.assert_allclose(target, [[2.6, 1.0]], rtol=1e-6)


def test_critic_loss_sums_critics_and_averages_the_batch():
    # Residuals: critic 0: 1, 1 -> 1; critic 1: 0, 2 -> 2; sum 3.
    q = jnp.array([[[1.0, 2.0], [0.0, 3.0]]])
    assert float(losses.critic_loss(q, jnp.array([[0.0, 1.0]]))) == 3.0


def test_unet_target_by_hand():
    # log U = 0, so U = 1: z = 0.3 + 0.25 * 1, or 0.3 if terminated.
    next_u = networks.to_variance(jnp.zeros(2))
    target = losses.unet_target(jnp.array([0.3, 0.3]), jnp.array([0.25, 0.0]), next_u)
    np.testing.assert_allclose(target, [0.55, 0.3], rtol=1e-6)


def test_unet_loss_vanishes_exactly_at_the_target():
    target = jnp.array([0.01, 1.0, 1e4])
    assert float(losses.unet_loss(jnp.log(target), target)) < 1e-9
    # One U-net at U = e - 1 (symlog 1) against z = 0: squared error 1.
    np.testing.assert_allclose(
        losses.unet_loss(jnp.log(jnp.array([np.e - 1])), jnp.zeros(1)), 1.0, rtol=1e-5
    )


def test_actor_loss_by_hand():
    # mean over groups of min over critics: (min(1, 4) + min(3, 2)) / 2 = 1.5; plus -0.5 * 2 for
    # the risk; minus 0.1 * 3 for the entropy: 0.2, negated.
    q = jnp.array([[[1.0], [4.0]], [[3.0], [2.0]]])
    value = losses.actor_loss(q, jnp.array([2.0]), jnp.array([3.0]), 0.1, -0.5)
    np.testing.assert_allclose(value, -0.2, rtol=1e-5)


def test_temperature_rises_while_entropy_is_low():
    # log pi = 3 means entropy -3, below the target -1: the gradient must push log alpha up.
    grad = jax.grad(losses.temperature_loss)(0.0, jnp.array([3.0]), -1.0)
    np.testing.assert_allclose(grad, -2.0)


def test_no_gradient_flows_through_targets():
    def through_critic_target(next_q):
        target = losses.critic_target(
            jnp.zeros((1, 2)), jnp.full((1, 2), 0.9), next_q, jnp.zeros((1, 2)), 0.1
        )
        return losses.critic_loss(jnp.ones((1, 1, 2)), target)

    def through_unet_target(next_log_u):
        next_u = networks.to_variance(next_log_u)
        target = losses.unet_target(jnp.ones(2), jnp.full(2, 0.81), next_u)
        return losses.unet_loss(jnp.ones(2), target)

    np.testing.assert_array_equal(jax.grad(through_critic_target)(jnp.ones((1, 1, 2))), 0.0)
    np.testing.assert_array_equal(jax.grad(through_unet_target)(jnp.ones(2)), 0.0)


def test_a_u_net_far_too_high_still_comes_down():
    log_u = jnp.array([1e3])
    assert np.isfinite(networks.to_variance(log_u)).all()
    assert np.isfinite(networks.to_std(log_u)).all()
    slope = jax.grad(lambda x: losses.unet_loss(x, jnp.ones(1)))(log_u)
    assert float(slope[0]) > 0


def test_safe_sqrt_has_no_infinite_slope():
    x = jnp.array([0.0, 1e-20, 1e-8, 4.0])  # the third is a √U of 1e-4, which counts
    np.testing.assert_allclose(losses.safe_sqrt(x), [0.0, 0.0, 1e-4, 2.0], rtol=1e-6)
    slopes = jax.vmap(jax.grad(losses.safe_sqrt))(x)
    np.testing.assert_allclose(slopes, [0.0, 0.0, 5e3, 0.25], rtol=1e-6)


def test_symlog_is_odd_and_logarithmic():
    np.testing.assert_allclose(losses.symlog(jnp.array([-1.0, 0.0, np.e - 1])), [-np.log(2), 0, 1])
