"""What the learner reads of the members' predictions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax.qusac import agent, model
from qusac_jax.qusac.config import Config
from qusac_jax.task import Task
from tests.sizes import small
from tests.tasks import ends_beyond

TASK = Task(3, 2, ends_beyond(0.5))


def test_members_expect_ends_beyond_the_range_of_the_data():
    config = small(Config(num_members=3))
    # Predictions clipped to the range of the data, 0.3 at most, are not beyond.
    task = dataclasses.replace(TASK, termination=ends_beyond(0.3, feature=1))
    state = agent.init(jax.random.key(0), config=config, task=task)
    most = jnp.array([jnp.inf, 0.3, jnp.inf, jnp.inf])
    dynamics = state.dynamics._replace(least=-most, most=most)
    observation = jax.random.normal(jax.random.key(1), (40, 3))
    action = jnp.zeros((40, 2))
    mean, _ = model.predict(dynamics, observation, action, config=config, task=task)
    found = model.predictor(dynamics, config, task)(observation, action)
    np.testing.assert_array_equal(found.terminated, mean[..., 1] > 0.3)
    assert 0 < int(found.terminated.sum()) < found.terminated.size


def test_expectations_are_in_deviations_of_the_data_and_next_states_inside_its_range():
    config = small(Config(num_members=3))
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    deviation = jnp.array([2.0, 0.25, 8.0])
    dynamics = state.dynamics._replace(
        change_std=deviation,
        target_std=jnp.array([0.5, 3.0, 0.1, 7.0]),
        noise_scale=jnp.array([[1.0], [0.5], [0.25]]) * jnp.ones(4),
        least=jnp.array([-jnp.inf, -0.3, -jnp.inf, 0.0]),
        most=jnp.array([jnp.inf, 0.3, jnp.inf, jnp.inf]),
    )
    keys = jax.random.split(jax.random.key(1))
    observation = jax.random.normal(keys[0], (40, 3))
    action = jax.random.uniform(keys[1], (40, 2), minval=-1.0)
    mean, std = model.predict(dynamics, observation, action, config=config, task=TASK)
    expect = model.predictor(dynamics, config, TASK)
    found = expect(observation, action)
    next_observation = mean[..., :3].at[..., 1].set(jnp.clip(mean[..., 1], -0.3, 0.3))
    assert float(jnp.abs(mean[..., 1]).max()) > 0.3
    np.testing.assert_allclose(found.next_observation, next_observation, rtol=1e-6)
    # What members disagree about is not lost where all of them leave the range.
    np.testing.assert_allclose(found.change, (mean[..., :3] - observation) / deviation, 1e-5)
    np.testing.assert_allclose(found.noise, std[..., :3] / deviation, rtol=1e-6)
    np.testing.assert_allclose(found.reward, jnp.maximum(mean[..., 3], 0.0), rtol=1e-6)
    assert 0 < int((mean[..., 3] < 0.0).sum()) < mean[..., 3].size
    np.testing.assert_array_equal(found.terminated, next_observation[..., 0] > 0.5)
    assert 0 < int(found.terminated.sum()) < found.terminated.size


def test_without_models_nothing_is_expected():
    config = dataclasses.replace(small(Config()), critic_data="replay", method="ensemble_mean")
    assert model.predictor(None, config, TASK) is None


def test_members_are_asked_about_the_step_from_where_it_begins():
    config = small(Config(num_members=3))
    ends = lambda observation, action, following: (following - observation)[..., 0] > action[..., 0]
    task = dataclasses.replace(TASK, termination=ends)
    dynamics = agent.init(jax.random.key(0), config=config, task=task).dynamics
    keys = jax.random.split(jax.random.key(1))
    observation = jax.random.normal(keys[0], (40, 3))
    action = jax.random.uniform(keys[1], (40, 2), minval=-1.0)
    mean, _ = model.predict(dynamics, observation, action, config=config, task=task)
    found = model.predictor(dynamics, config, task)(observation, action)
    expected = mean[..., 0] - observation[:, 0] > action[:, 0]
    np.testing.assert_array_equal(found.terminated, expected)
    assert 0 < int(expected.sum()) < expected.size
