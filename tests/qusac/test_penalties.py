"""What is taken off the rewards of rollouts where the model is uncertain."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import agent, model
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.penalties import PENALTIES
from qusac_jax.task import Task, Transition
from tests.sizes import small
from tests.tasks import ends_beyond

TASK = Task(3, 2, ends_beyond(1e9))
MODEL_BASED = small(
    Config(method="ensemble_mean", critic_data="member", num_members=2, penalty="mopo")
)


def test_mopo_of_two_members_by_hand():
    std = jnp.array(
        [
            [[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 2.0]],  # norms 5, 0, 3
            [[0.0, 1.0, 0.0], [0.0, 0.0, 7.0], [2.0, 3.0, 6.0]],  # norms 1, 7 (the reward's), 7
        ]
    )
    np.testing.assert_allclose(PENALTIES["mopo"](jnp.ones_like(std), std), [5.0, 7.0, 7.0])


def test_mopo_is_about_the_predicted_noise_and_not_about_disagreement():
    std = jnp.ones((3, 4, 2))
    agree, disagree = jnp.zeros((3, 4, 2)), jnp.arange(24.0).reshape(3, 4, 2)
    np.testing.assert_array_equal(PENALTIES["mopo"](agree, std), PENALTIES["mopo"](disagree, std))


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, pytest.param(1.0, marks=pytest.mark.slow), 2.5])
def test_rollouts_store_rewards_less_the_penalty_of_all_members(scale):
    config = dataclasses.replace(MODEL_BASED, penalty_scale=scale)
    keys = jax.random.split(jax.random.key(0), 3)
    data = Transition(
        jax.random.normal(keys[0], (10, 3)),
        jax.random.uniform(keys[1], (10, 2)),
        jnp.zeros(10),
        jax.random.normal(keys[2], (10, 3)),
        jnp.zeros(10, bool),
    )
    state = agent.init(jax.random.key(1), config=config, task=TASK)
    state = agent.observe(state, data)
    assert state.dynamics is not None
    roll_out = jax.jit(functools.partial(agent.roll_out, task=TASK), static_argnames="config")
    without = roll_out(state, config=dataclasses.replace(config, penalty=None))
    penalized = roll_out(state, config=config)
    for plain, less in (
        (without.model_data, penalized.model_data),
        (without.member_data, penalized.member_data),
    ):
        np.testing.assert_array_equal(plain.size, less.size)
        np.testing.assert_array_equal(plain.data.observation, less.data.observation)
        observation, action = (x.reshape(-1, x.shape[-1]) for x in less.data[:2])
        _, std = model.predict(state.dynamics, observation, action, config=config, task=TASK)
        expected = scale * np.linalg.norm(std, axis=-1).max(0)
        taken = np.ravel(plain.data.reward - less.data.reward)
        is_there = np.ravel(
            np.arange(less.data.reward.shape[-1]) < np.asarray(less.size)[..., None]
        )
        assert is_there.any()
        np.testing.assert_allclose(taken[is_there], expected[is_there], rtol=1e-4, atol=1e-5)
