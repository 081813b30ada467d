"""Randomness that is used once: a repeated key would go unnoticed in every mean."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import seeds
from qusac_jax.environments import streams
from qusac_jax.qusac import agent, multistep, presets, replay
from qusac_jax.qusac.config import Config
from qusac_jax.task import Task, Transition
from tests.sizes import small
from tests.tasks import ends_beyond

TASK = Task(3, 2, ends_beyond(3.0))


VERBS = ("collect", "train_step", "learn", "fit", "roll_out", "refresh")


def check_keys(verb, config):
    """Two calls in a row, so that the key that the first hands back is used, too."""
    state = jax.eval_shape(
        functools.partial(agent.init, config=config, task=TASK), jax.random.key(0)
    )
    observation, action, scalar = jnp.zeros(3), jnp.zeros(2), jnp.zeros(())
    transition = Transition(observation, action, scalar, observation, jnp.array(False))
    arguments = (transition, observation) if verb in ("collect", "train_step") else ()

    def twice(state):
        for _ in range(2):
            after = getattr(agent, verb)(state, *arguments, config=config, task=TASK)
            state = after if isinstance(after, agent.TrainState) else after[0]
        return state

    with jax.debug_key_reuse(True):
        jax.jit(twice).trace(state)


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_uses_a_key_twice_or_hands_back_one_that_it_has_used(verb):
    check_keys(verb, small(Config(num_members=2, updates_per_step=2)))


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["explore", "explore_upper_bound", "paper", "mbpo", "mopo"])
def test_no_verb_of_a_preset_uses_a_key_twice(name, verb):
    check_keys(verb, dataclasses.replace(small(presets.get(name)), updates_per_step=2))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact_ube", "pombu", "ensemble_var", "disagreement"])
def test_no_method_uses_a_key_twice(method):
    config = dataclasses.replace(small(presets.get("qusac")), method=method, updates_per_step=2)
    check_keys("train_step", config)


def test_a_key_that_is_used_twice_would_show():
    def twice(key):
        return jax.random.normal(key) + jax.random.uniform(key)

    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        jax.jit(twice).trace(jax.random.key(0))


def test_every_member_has_a_batch_of_its_own():
    config = dataclasses.replace(small(Config(num_members=3)), batch_size=64)
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    slots = jnp.arange(64.0)
    numbered = replay.full(
        Transition(jnp.zeros((64, 3)), jnp.zeros((64, 2)), slots, jnp.zeros((64, 3)), slots < 0)
    )
    of_members = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (3, *x.shape)),
        replay.Buffer(multistep.single(numbered.data), *numbered[1:]),
    )
    state = state._replace(replay=numbered, model_data=numbered, member_data=of_members)
    critic, policy = agent._sample_batches(state, jax.random.key(1), config)
    drawn = [tuple(row) for row in (*critic.reward.tolist(), policy.reward.tolist())]
    assert len(set(drawn)) == len(drawn) == 4


def test_a_stream_shares_no_key_with_the_agents():
    data = lambda keys: {tuple(row) for row in jax.random.key_data(keys).reshape(-1, 2).tolist()}
    first = jnp.stack([streams.first_key(jnp.uint32(seed)) for seed in range(3)])
    of_streams = data(first) | data(jax.vmap(lambda key: jax.random.split(key, 3))(first))
    assert len(of_streams) == 12
    agents = seeds.keys([0, 1, 2], 3)
    of_agents = data(agents) | data(jax.vmap(jax.vmap(jax.random.split))(agents))
    assert not of_streams & (of_agents | data(jax.vmap(jax.random.key)(jnp.arange(3))))


def test_the_warmup_acts_at_random():
    config = small(Config(num_members=2))
    state = agent.init(jax.random.key(5), config=config, task=TASK)
    observation = jnp.ones(3)
    transition = Transition(observation, jnp.zeros(2), jnp.zeros(()), observation, jnp.array(False))
    draw = jax.random.split(state.key)[1]
    expected = agent.act(state.actor, observation, draw, config=config, task=TASK)
    mean = agent.act(state.actor, observation, config=config, task=TASK)
    _, action = agent.collect(state, transition, observation, config=config, task=TASK)
    np.testing.assert_allclose(action, expected, rtol=1e-6)
    assert float(jnp.abs(action - mean).max()) > 1e-3


@pytest.mark.slow
def test_every_update_of_a_call_has_a_batch_of_its_own():
    # Nothing is learned, all transitions end, and rewards are 0, 1, ..., 31.
    still = ("actor_learning_rate", "critic_learning_rate", "temperature_learning_rate")
    config = dataclasses.replace(
        small(presets.get("sac")), target_rate=1e-12, **dict.fromkeys(still, 1e-12)
    )
    state = agent.init(jax.random.key(0), config=config, task=TASK)
    x = jax.random.normal(jax.random.key(1), (32, 3))
    data = Transition(x, jnp.tanh(x[:, :2]), jnp.arange(32.0), x, jnp.ones(32, bool))
    state = agent.observe(state, data)

    def last_loss(num_updates):
        learn = functools.partial(agent.learn, config=config, task=TASK, num_updates=num_updates)
        return float(jax.jit(learn)(state)[1]["critic_loss"])

    assert last_loss(1) != last_loss(2)
