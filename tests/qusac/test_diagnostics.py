"""What the log says about a state, against values known by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import agent, diagnostics, networks, replay
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.task import Task, Transition
from tests.networks import constant
from tests.sizes import small
from tests.tasks import ends_beyond

TASK = Task(1, 1, ends_beyond(3.0))


def buffer_of(rewards, capacity=6):
    rewards = jnp.asarray(rewards, jnp.float32)
    zeros = jnp.zeros((len(rewards), 1))
    ends = jnp.zeros(len(rewards), bool)
    return replay.add(replay.init(capacity, 1, 1), Transition(zeros, zeros, rewards, zeros, ends))


def test_rewarded_share_ignores_empty_slots():
    assert float(diagnostics.rewarded_share(buffer_of([0, 0, 1, 2]), 0.5)) == 0.5
    assert float(diagnostics.rewarded_share(replay.init(6, 1, 1), -1.0)) == 0.0


def test_rewarded_slots_are_named_and_counted():
    buffer = buffer_of([0, 1, 0, 2])
    slots, is_there = diagnostics.rewarded_slots(buffer, 0.5, 3)
    np.testing.assert_array_equal(slots[is_there], [1, 3])
    np.testing.assert_array_equal(is_there, [True, True, False])
    slots, is_there = jax.jit(diagnostics.rewarded_slots, static_argnums=2)(buffer, 0.5, 1)
    np.testing.assert_array_equal(slots[is_there], [1])


def test_values_are_the_mean_over_groups_of_their_least_critics():
    config = small(Config(num_members=2, num_critics=2))
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    said = jnp.array([[1.0, 5.0], [3.0, 2.0]])[..., None]  # the least are 1 and 2
    learner = state.learner._replace(
        critic=constant(state.learner.critic, said),
        target_critic=constant(state.learner.critic, 50.0),
        unet=constant(state.learner.unet, np.log(9.0)),
    )
    state = state._replace(learner=learner)
    q, std = diagnostics.values_at(state, jnp.ones((4, 1)), config=config, task=TASK)
    np.testing.assert_allclose(q, 1.5 * np.ones(4), rtol=1e-6)
    np.testing.assert_allclose(std, 3.0 * np.ones(4), rtol=1e-6)


def test_values_are_those_of_the_actions_that_are_given():
    config = small(Config(num_members=2))
    both = {"config": config, "task": TASK}
    state = agent.init(jax.random.key(0), **both)
    observation = jax.random.normal(jax.random.key(1), (4, 1))
    best = agent.act(state.actor, observation, **both)
    for found, wanted in zip(
        diagnostics.values_at(state, observation, best, **both),
        diagnostics.values_at(state, observation, **both),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    other = jnp.clip(best + 0.5, -1.0, 1.0)
    parts = parts_lib.build(config, TASK.action_size)
    q = networks.apply(parts.critic, state.learner.critic, observation, other)
    log_u = networks.apply(parts.unet, state.learner.unet, observation, other)
    found, std = diagnostics.values_at(state, observation, other, **both)
    np.testing.assert_allclose(found, q[:, 0].mean(0), rtol=1e-6)
    np.testing.assert_allclose(std, np.exp(log_u / 2), rtol=1e-5)
    of_lists = diagnostics.values_at(state, observation.tolist(), other.tolist(), **both)
    np.testing.assert_allclose(of_lists, (found, std), rtol=1e-6)
    with pytest.raises(ValueError, match=r"observation must have shape \[B, 1\], got \(1,\)"):
        diagnostics.values_at(state, observation[0], **both)
    with pytest.raises(ValueError, match=r"action must have shape \[B, 1\], got \(3, 1\)"):
        diagnostics.values_at(state, observation, other[:3], **both)


def test_shares_of_rewarded_transitions_are_of_their_own_buffers():
    config = small(Config(num_members=2))
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    rewards, model_rewards = buffer_of([0, 1]), buffer_of([1, 1, 1, 0])
    state = state._replace(
        replay=replay.add(state.replay, jax.tree.map(lambda x: x[:2], rewards.data)),
        model_data=replay.add(state.model_data, jax.tree.map(lambda x: x[:4], model_rewards.data)),
    )
    found = diagnostics.diagnose(state, jax.random.key(1), config=config, task=TASK)
    assert found["rewarded_share_replay"] == 0.5
    assert found["rewarded_share_model"] == 0.75


def test_ends_are_compared_where_they_are_held_out_and_there(monkeypatch):
    # Held out are the slots 0, 20 and 40 (and 60, which is empty). The model says an end at 0, 1
    # and 2; episodes ended at 1, 2 and 20.
    config = small(Config())
    assert config.dynamics.holdout_every == 20
    slot = jnp.arange(45.0)
    state = slot[:, None]
    ended = jnp.isin(slot, jnp.array([1.0, 2.0, 20.0]))
    data = Transition(state, state, slot, state, ended)
    buffer = replay.add(replay.init(64, 1, 1), data)
    said = lambda observation, action, following: following[..., 0] < 2.5
    monkeypatch.setattr(diagnostics.model, "termination", lambda *_, **__: said)
    found = diagnostics._termination_errors(None, buffer, config, TASK)
    assert (float(found["missed_ends"]), float(found["false_ends"])) == (1.0, 0.5)
