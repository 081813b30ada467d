"""What the dynamics ask their network and make of its answers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import dynamics as dynamics_lib
from qusac_jax.qusac import fitting, replay
from qusac_jax.qusac.config import DynamicsConfig
from qusac_jax.qusac.dynamics_network import DynamicsNetwork
from qusac_jax.task import Transition

MODEL = DynamicsNetwork((4,), observation_size=1, num_members=3, learn_termination=True)


@pytest.fixture
def dynamics():
    return dynamics_lib.init(MODEL, jax.random.key(0), action_size=1, learning_rate=1e-3)


def test_learned_ends_are_asked_about_the_next_state_in_the_range_of_the_data(
    dynamics, monkeypatch
):
    asked = []

    def logits(model, params, inputs):
        asked.append(inputs)
        return jnp.zeros((3, 2))

    monkeypatch.setattr(dynamics_lib, "termination_logits", logits)
    dynamics = dynamics._replace(
        input_mean=jnp.array([1.0, 0.5]),
        input_std=jnp.array([2.0, 0.25]),
        most=jnp.array([3.0, jnp.inf]),
    )
    ends = dynamics_lib.termination(MODEL, dynamics)
    ends(jnp.array([[5.0], [0.0]]), jnp.ones((2, 1)), jnp.array([[9.0], [2.0]]))
    np.testing.assert_allclose(asked[0], [[2.0, 2.0, 1.0], [-0.5, 2.0, 0.5]])


def test_an_episode_ends_where_members_take_it_for_likely_in_their_mean(dynamics, monkeypatch):
    # Two of three are not enough where the third is sure, nor is one.
    said = jnp.array([[0.6, 0.6, 0.9], [0.6, 0.6, 0.3], [0.01, 0.4, 0.2]])  # [N, B]
    logits = jnp.log(said / (1.0 - said))
    monkeypatch.setattr(dynamics_lib, "termination_logits", lambda *_: logits)
    state = jnp.zeros((3, 1))
    ends = dynamics_lib.termination(MODEL, dynamics)(state, state, state)
    np.testing.assert_array_equal(ends, [False, True, False])


def test_predictions_are_in_the_units_of_their_targets(dynamics):
    observation, action = jnp.array([[0.5], [-1.0]]), jnp.array([[1.0], [0.2]])
    mean, std = dynamics_lib.predict(MODEL, dynamics, observation, action)
    unit, scale = jnp.array([2.0, 5.0]), jnp.array([[1.0, 0.5], [0.2, 1.0], [0.1, 0.1]])
    scaled = dynamics._replace(target_std=unit, noise_scale=scale)
    found_mean, found_std = dynamics_lib.predict(MODEL, scaled, observation, action)
    change = mean.at[..., :1].add(-observation)
    expected = (unit * change).at[..., :1].add(observation)
    np.testing.assert_allclose(found_mean, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found_std, std * scale[:, None] * unit, rtol=1e-5)


@pytest.mark.parametrize("num_there", [1, 2, 4])
def test_ends_are_learned_from_the_slots_that_are_there(dynamics, num_there):
    # Networks of zeros take an end to be as likely as not: log 2 for each member.
    zeros = jnp.zeros((4, 1))
    data = Transition(zeros, zeros, zeros[:, 0], zeros, jnp.array([True, False, True, True]))
    problem = fitting._Problem(
        model=MODEL,
        config=DynamicsConfig(learn_termination=True),
        batch_size=4,
        dynamics=dynamics,
        buffer=replay.add(replay.init(4, 1, 1), data),
        num_train=jnp.int32(num_there),
        num_steps=jnp.int32(1),
        bootstrap=None,
    )
    slots = jnp.broadcast_to(jnp.arange(4), (3, 4))
    is_there = (jnp.arange(4) < num_there).astype(jnp.float32)
    params = jax.tree.map(jnp.zeros_like, dynamics.params)
    found = fitting._termination_loss(problem, slots, is_there, params)
    np.testing.assert_allclose(found, 3 * np.log(2.0), rtol=1e-6)
