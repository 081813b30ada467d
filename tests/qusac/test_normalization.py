"""Statistics of observations: that they are those of D, and that units make no difference."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.policy import Policy, load_policy, save_policy
from qusac_jax.qusac import agent, layers, networks, normalization, presets
from qusac_jax.task import Task, Transition
from tests.sizes import small
from tests.tasks import ends_beyond

TASK = Task(3, 1, ends_beyond(1e6))
NETWORKS = ("actor", "critic", "target_critic", "unet", "target_unet")


def config_of(preset="qusac", *, normalize=True):
    return dataclasses.replace(small(presets.get(preset)), normalize_observations=normalize)


def init(config):
    return agent.init(jax.random.key(0), config=config, task=TASK)


def transitions(num_steps, scale=1.0, offset=0.0):
    """Of three dimensions, the last of which is constant."""
    rng = np.random.default_rng(0)
    states = np.float32([1.0, 1.0, 0.0]) * rng.normal(size=(num_steps + 1, 3)).astype(np.float32)
    action, reward = rng.uniform(-1, 1, (num_steps, 1)), rng.normal(size=num_steps)
    states = np.float32(scale) * states + np.float32(offset)
    ended = jnp.zeros(num_steps, bool)
    return Transition(
        states[:-1], action.astype(np.float32), reward.astype(np.float32), states[1:], ended
    )


def observed(state, data, sizes):
    """In pieces of these sizes, one after the other."""
    observe = jax.jit(agent.observe)
    first = 0
    for size in sizes:
        state = observe(state, jax.tree.map(lambda x, at=slice(first, first + size): x[at], data))
        first += size
    assert first == len(data.reward)
    return state


def test_they_are_those_of_D_however_it_came():
    data = transitions(60, scale=[0.01, 3.0, 1.0], offset=[0.5, -20.0, 2.0])
    for sizes in ([60], [1] * 60, [0, 1, 1, 0, 18, 40, 0]):
        state = observed(init(config_of()), data, sizes)
        for name in NETWORKS:
            mean, variance = networks.statistics(getattr(state.learner, name))
            np.testing.assert_allclose(mean, data.observation.mean(0), rtol=1e-5)
            np.testing.assert_allclose(variance, data.observation.var(0), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_they_are_exact_where_nothing_changes_and_in_any_precision(dtype):
    data = transitions(999, scale=[300.0, 1.0, 1.0], offset=[0.0, 0.0, 100.3])
    data = jax.tree.map(lambda x: x.astype(dtype) if x.dtype == np.float32 else x, data)
    learner = init(config_of()).learner
    for num_before in (0, 999):
        learner = normalization.follow(learner, data.observation, num_before)
    _, variance = networks.statistics(learner.actor)
    expected = np.float32(data.observation).var(0)
    np.testing.assert_allclose(variance, [*expected[:2], 0.0], rtol=1e-3)


def test_a_state_that_has_them_can_be_donated_without_a_compiler():
    state = agent.observe(init(config_of()), transitions(5))
    jax.jit(lambda x: x, donate_argnums=0)(state)  # holds no array twice


def test_where_D_is_full_they_follow_what_comes():
    config = config_of()
    state = observed(init(config), transitions(64), [64])
    before, _ = networks.statistics(state.learner.actor)
    new = jax.tree.map(lambda x: x[:1], transitions(1, offset=7.0))
    after, _ = networks.statistics(agent.observe(state, new).learner.actor)
    share = 1 / (config.replay_capacity + 1)
    np.testing.assert_allclose(after, before + share * (new.observation[0] - before), rtol=1e-5)


def test_without_the_option_there_are_none():
    state = init(config_of(normalize=False))
    assert networks.statistics(state.learner.actor) is None
    after = agent.observe(state, transitions(5))
    jax.tree.map(np.testing.assert_array_equal, after.learner, state.learner)


def test_a_new_learner_takes_them_over():
    data = transitions(60, scale=[0.01, 3.0, 1.0], offset=[0.5, -20.0, 2.0])
    old = observed(init(config_of()), data, [60]).learner
    for normalize in (True, False):
        fresh = init(config_of(normalize=normalize)).learner
        if not normalize:
            old = observed(init(config_of(normalize=False)), data, [60]).learner
        new = normalization.taken_over(fresh, old)
        for name in NETWORKS:
            if normalize:
                mean, _ = networks.statistics(getattr(new, name))
                np.testing.assert_allclose(mean, data.observation.mean(0), rtol=1e-5)
            else:
                assert networks.statistics(getattr(new, name)) is None
        weights = lambda learner: learner.actor["params"]["MLP_0"]["Dense_0"]["kernel"]
        np.testing.assert_array_equal(weights(new), weights(fresh))
        jax.jit(lambda x: x, donate_argnums=0)(new)  # holds no array twice


@pytest.mark.slow
def test_learning_changes_weights_and_leaves_them():
    config = config_of()
    state = observed(init(config), transitions(30, scale=0.1, offset=4.0), [30])
    state, _ = agent.refresh(state, config=config, task=TASK)
    after, _ = agent.learn(state, config=config, task=TASK, num_updates=20)
    for name in NETWORKS:
        before, now = getattr(state.learner, name), getattr(after.learner, name)
        assert not np.array_equal(
            *(x["params"]["MLP_0"]["Dense_0"]["kernel"] for x in (before, now))
        )
        for old, new in zip(networks.statistics(before), networks.statistics(now), strict=True):
            np.testing.assert_allclose(new, old, rtol=1e-5)


def actions_after_learning(config, scale, offset):
    """The policy's actions at the same ten states, whatever the units."""
    data = transitions(40, scale, offset)
    state = observed(init(config), data, [1] * 40)
    learn = jax.jit(functools.partial(agent.learn, config=config, task=TASK, num_updates=100))
    state, metrics = learn(state)
    observation = jnp.asarray(data.observation[:10])
    return agent.act(state.actor, observation, config=config, task=TASK), metrics


@pytest.mark.parametrize("normalize", [True, False])
def test_the_units_of_observations_make_no_difference(normalize):
    # Without a model, whose inputs have a normalization of their own.
    config = config_of("sac", normalize=normalize)
    actions, metrics = actions_after_learning(config, 1.0, 0.0)
    others, other_metrics = actions_after_learning(config, [1 / 64, 16.0, 1.0], [2.0, -5.0, 3.0])
    same = np.allclose(actions, others, atol=1e-3) and np.allclose(
        metrics["critic_loss"], other_metrics["critic_loss"], rtol=1e-2
    )
    assert same == normalize


def test_a_saved_policy_has_them(tmp_path):
    config = config_of("sac")
    data = transitions(40, scale=1 / 64, offset=2.0)
    actor = observed(init(config), data, [40]).actor
    save_policy(
        tmp_path / "policy",
        jax.tree.map(lambda x: x[None], actor),
        hidden=config.actor_hidden,
        action_low=[-1.0],
        action_high=[1.0],
        metadata={"env": "acrobot", "action_cost": 0.0},
    )
    policy: Policy = load_policy(tmp_path / "policy")
    expected = agent.act(actor, jnp.asarray(data.observation), config=config, task=TASK)
    np.testing.assert_array_equal(policy(data.observation), expected)
    assert np.ptp(expected) > 0.1  # which observations so close together would not make otherwise


def test_rounding_is_not_read_as_data():
    column = np.float32(100) + np.spacing(np.float32(100)) * np.arange(-1, 2, dtype=np.float32)
    mean, variance = column.mean(keepdims=True), column.var(keepdims=True)
    assert variance > 1e-12
    layer = layers.Normalize()
    params = {"params": {"mean": jnp.asarray(mean), "variance": jnp.asarray(variance)}}
    read = layer.apply(params, jnp.asarray(column)[:, None])
    np.testing.assert_allclose(read, column[:, None] - mean, atol=1e-6)
    assert np.abs(read).max() < 1e-3
