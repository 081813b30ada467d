"""The loop on the device: what it says of its steps."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import evaluation, seeds
from experiments.training import device_loop
from qusac_jax import environments, qusac
from qusac_jax.environments import streams
from qusac_jax.qusac import presets
from tests.pendulum import Pendulum
from tests.sizes import small

CONFIG = small(presets.get("sac"))
ACTION_COST = 0.5


class Paying(Pendulum):
    """A step pays its action; from the third of an episode on, infinitely much."""

    def reset(self, key):
        return super().reset(key)._replace(speed=jnp.float32(0.0))

    def step(self, state, action, key):
        return state._replace(speed=state.speed + 1.0)

    def reward(self, state, action, next_state):
        return jnp.where(next_state.speed > 2.5, jnp.inf, action[0])


@pytest.fixture(scope="module")
def report():
    env = Paying()
    task = qusac.Task(3, 1, env.termination)
    keys = jax.random.split(jax.random.key(0), 2)
    init = lambda key: qusac.init(key, config=CONFIG, task=task)
    state = jax.jit(jax.vmap(init))(keys)
    envs = jax.jit(jax.vmap(functools.partial(streams.start, env)))(keys)
    run = functools.partial(
        device_loop.run_steps, env=env, config=CONFIG, task=task, action_cost=ACTION_COST
    )
    run = jax.jit(run)

    def after(num_steps, reward_threshold=1.2):
        """The report of the first steps, all of them warm-up; the first action pays 2."""
        plan = device_loop.plan(0, num_steps, 5, config=CONFIG)
        return run(state, envs, jnp.ones((2, 1)), plan, reward_threshold=reward_threshold)[-1]

    return after


def test_the_first_faulty_step_is_the_one_that_is_named(report):
    np.testing.assert_array_equal(report(5).faulty_step, 3)
    np.testing.assert_array_equal(report(1).faulty_step, 0)


def test_the_action_cost_is_off_what_counts_as_rewarded(report):
    np.testing.assert_array_equal(report(1).rewarded_steps, 1)  # 2 - 0.5
    np.testing.assert_array_equal(report(1, reward_threshold=1.7).rewarded_steps, 0)


def test_episodes_are_those_of_the_loop_on_the_host():
    vector = environments.vector(
        "functional:tests.pendulum:Pendulum", range(6), action_cost=ACTION_COST
    )
    both = {"config": CONFIG, "task": vector.spec.task()}
    actor = seeds.mapped(qusac.init, **both)(seeds.keys([0, 1], 1)[:, 0]).actor
    run = functools.partial(
        device_loop.run_episodes, env=vector.environment, action_cost=ACTION_COST, **both
    )
    _, found = jax.jit(run)(actor, vector.streams)
    act = seeds.mapped(qusac.act, **both)
    expected = evaluation.evaluate(vector, lambda x: act(actor, x), 2, CONFIG.discount)
    for name, values in expected._asdict().items():
        np.testing.assert_allclose(
            getattr(found, name).reshape(values.shape), values, rtol=1e-4, atol=1e-4, err_msg=name
        )
    assert not np.allclose(expected.discounted_return, expected.episode_return, rtol=1e-3)
