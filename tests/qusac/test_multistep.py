"""Several steps as one, against a loop over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import multistep
from qusac_jax.task import Transition

K, B, SIZE, DISCOUNT = 6, 4, 2, 0.9
# Rollout 1 ends at once, 2 in the middle and what follows is no part of it, 3 at the last step.
ENDS = {1: 0, 2: 3, 3: K - 1}


@pytest.fixture
def rollout():
    generator = np.random.default_rng(0)
    terminated = np.zeros((K, B), bool)
    for b, k in ENDS.items():
        terminated[k, b] = True
    draw = lambda *shape: jnp.asarray(generator.normal(size=shape), jnp.float32)
    return Transition(draw(K, B, SIZE), draw(K, B, 1), draw(K, B), draw(K, B, SIZE), terminated)


@pytest.mark.parametrize("num_steps", [1, 2, 3, K, K + 3])
def test_steps_are_those_of_a_loop(rollout, num_steps):
    steps = jax.jit(multistep.along, static_argnums=(1, 2))(rollout, num_steps, DISCOUNT)
    follows = multistep.discounts(steps, DISCOUNT)
    np.testing.assert_array_equal(steps.observation, rollout.observation)
    np.testing.assert_array_equal(steps.action, rollout.action)
    for b in range(B):
        for k in range(K):
            reward, discount, last, count = 0.0, 1.0, k, 0
            for i in range(k, min(k + num_steps, K)):
                reward += discount * float(rollout.reward[i, b])
                discount *= DISCOUNT * (not rollout.terminated[i, b])
                last, count = i, count + 1
                if rollout.terminated[i, b]:
                    break
            np.testing.assert_allclose(steps.reward[k, b], reward, rtol=1e-5, atol=1e-6)
            assert steps.num_steps[k, b] == (count if discount else 0)
            np.testing.assert_allclose(follows[k, b], discount, rtol=1e-5)
            np.testing.assert_array_equal(
                steps.next_observation[k, b], rollout.next_observation[last, b]
            )


@pytest.mark.parametrize("num_steps", [1, 3, K + 3])
def test_what_a_unet_looks_ahead_at_is_that_of_a_loop(rollout, num_steps):
    local = jnp.abs(rollout.reward)
    ahead = multistep.ahead(rollout, local, num_steps, DISCOUNT)
    assert all(a is b for a, b in zip(multistep.plain(ahead), rollout, strict=True))
    steps = multistep.along(rollout._replace(reward=local), num_steps, DISCOUNT**2)
    np.testing.assert_array_equal(ahead.propagated, steps.reward)
    np.testing.assert_array_equal(ahead.led_to, steps.next_observation)
    np.testing.assert_array_equal(ahead.num_steps, steps.num_steps)
    for b in range(B):
        end = ENDS.get(b, K - 1)
        for k in range(end + 1):
            weights = DISCOUNT ** (2 * np.arange(min(num_steps, end + 1 - k)))
            there = np.asarray(local)[k : k + len(weights), b]
            np.testing.assert_allclose(ahead.propagated[k, b], weights @ there, rtol=1e-5)
            mean = weights @ there / weights.sum()
            np.testing.assert_allclose(ahead.per_step[k, b], mean, rtol=1e-5)


def test_more_steps_are_no_more_to_compile(rollout):
    sizes = [
        len(str(jax.make_jaxpr(lambda r, n=n: multistep.along(r, n, DISCOUNT))(rollout)))
        for n in (3, 200)
    ]
    assert sizes[1] < 1.05 * sizes[0]


def test_values_of_a_policy_solve_the_equation_for_any_number_of_steps(rollout):
    # Along a rollout without noise the value at k is the discounted sum of what follows it.
    value = np.zeros((K + 1, B))
    value[K] = 7.0
    for k in reversed(range(K)):
        go_on = np.where(rollout.terminated[k], 0.0, DISCOUNT)
        value[k] = np.asarray(rollout.reward[k]) + go_on * value[k + 1]
    where = jnp.broadcast_to(jnp.arange(1.0, K + 1)[:, None, None], (K, B, 1))
    for num_steps in (1, 4):
        steps = multistep.along(rollout._replace(next_observation=where), num_steps, DISCOUNT)
        arrived = np.asarray(steps.next_observation[..., 0], int)
        next_value = np.take_along_axis(value, arrived, axis=0)
        np.testing.assert_allclose(
            steps.reward + multistep.discounts(steps, DISCOUNT) * next_value,
            value[:K],
            rtol=1e-5,
            atol=1e-5,
        )
