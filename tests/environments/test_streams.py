"""Steps of one copy of an environment on the device: its noise, resets, and waiting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax import environments
from qusac_jax.environments import streams
from tests.pendulum import Pendulum


class Noisy(Pendulum):
    """Its speed is drawn at each step."""

    def step(self, state, action, key):
        return state._replace(speed=jax.random.uniform(key))


class Ending(Pendulum):
    """Each of its steps ends the episode, and is the last that it may have."""

    episode_length = 1

    def terminated(self, state):
        return jnp.ones((), bool)


def test_every_step_is_drawn_anew():
    env = Noisy()
    first = streams.start(env, streams.first_key(jnp.uint32(0)))
    advance = lambda stream, _: streams.advance(env, stream, jnp.zeros(1))
    _, results = jax.lax.scan(advance, first, length=10)
    assert len(np.unique(results.next_observation[:, 2])) == 10


def test_a_reset_begins_another_episode():
    env = environments.vector("functional:tests.pendulum:Pendulum", [0, 1])
    first = env.reset()
    for _ in range(7):
        env.step(np.zeros((2, 1)))
    assert (env.reset() != first).any(-1).all()
    lengths = [env.step(np.zeros((2, 1))).episode_length for _ in range(20)]
    assert np.isnan(lengths[:-1]).all()
    np.testing.assert_array_equal(lengths[-1], 20)


def test_a_copy_that_waits_ends_nothing_and_earns_nothing():
    env = Ending()
    stream = streams.start(env, streams.first_key(jnp.uint32(0)))
    advance = lambda active: streams.advance(env, stream, jnp.ones(1), active=active)
    _, stepped = advance(True)
    assert stepped.terminated
    assert stepped.truncated
    assert stepped.task_reward != 0
    after, result = advance(jnp.array(False))
    assert not result.terminated
    assert not result.truncated
    assert result.reward == result.task_reward == 0
    of_episode = (result.episode_return, result.episode_task_return, result.episode_length)
    assert np.isnan(of_episode).all()
    np.testing.assert_array_equal(result.next_observation, stream.observation)
    plain = lambda stream: stream._replace(key=jax.random.key_data(stream.key))
    jax.tree.map(np.testing.assert_array_equal, plain(after), plain(stream))


def test_the_action_cost_is_that_of_the_action_after_clipping():
    stream = streams.start(Pendulum(), streams.first_key(jnp.uint32(0)))
    _, result = streams.advance(Pendulum(), stream, jnp.array([-3.0]), action_cost=0.1)
    np.testing.assert_allclose(result.task_reward - result.reward, 0.1, rtol=1e-5)


def test_neither_steps_nor_resets_use_a_key_twice():
    def steps(key):
        stream = streams.start(Pendulum(), key)
        for _ in range(2):
            stream = streams.restart(Pendulum(), stream)
        return stream

    with jax.debug_key_reuse(True):
        jax.jit(steps).trace(jax.random.key(0))


class Leaving(Pendulum):
    """Cuts each episode off before its length."""

    def truncated(self, state):
        return jnp.ones((), bool)


def test_an_environment_may_cut_an_episode_off_before_its_length():
    stream = streams.start(Leaving(), streams.first_key(jnp.uint32(0)))
    after, result = streams.advance(Leaving(), stream, jnp.zeros(1))
    assert result.truncated
    assert not result.terminated
    assert result.episode_length == 1
    assert after.episode_length == 0


@pytest.mark.parametrize("shape", [(2,), (), (5, 1)])
def test_an_action_of_another_size_is_refused(shape):
    stream = streams.start(Pendulum(), jax.random.key(0))
    with pytest.raises(ValueError, match=r"action must have shape \[A\] = \(1,\), got"):
        streams.advance(Pendulum(), stream, jnp.ones(shape))


def test_a_list_is_an_action_and_a_seed_no_key():
    stream = streams.start(Pendulum(), jax.random.key(0))
    _, expected = streams.advance(Pendulum(), stream, jnp.ones(1))
    _, result = streams.advance(Pendulum(), stream, [1.0])
    assert result.reward == expected.reward
    with pytest.raises(ValueError, match="key must be a key of JAX"):
        streams.start(Pendulum(), 0)


def test_returns_are_single_precision_where_double_is_enabled():
    with jax.enable_x64(True):
        stream = streams.start(Pendulum(), jax.random.key(0))
    assert stream.episode_return.dtype == stream.episode_task_return.dtype == jnp.float32
