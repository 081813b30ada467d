"""Networks that begin anew: when, and what stays."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import agent, networks, presets, resets
from qusac_jax.qusac.config import Config
from qusac_jax.task import Task, Transition
from tests.sizes import small

TASK = Task(3, 1, termination=lambda _, __, next_observation: next_observation[..., 0] > 1e6)
CONFIG = dataclasses.replace(
    small(presets.get("explore")), reset_every=6, risk_awaits_reward=False, updates_per_step=3
)
BOTH = {"config": CONFIG, "task": TASK}

refresh = jax.jit(functools.partial(agent.refresh, **BOTH))
learn_once = jax.jit(functools.partial(agent.learn, **BOTH, num_updates=1))
roll_out = jax.jit(functools.partial(agent.roll_out, **BOTH))


def learned(num_updates, seed=0):
    """A state with data, models and rollouts, after so many updates."""
    keys = jax.random.split(jax.random.key(seed), 4)
    observation = 5.0 + jax.random.normal(keys[0], (31, 3))
    action = jax.random.uniform(keys[1], (30, 1), minval=-1.0)
    reward = jax.random.normal(keys[2], (30,))
    data = Transition(observation[:-1], action, reward, observation[1:], jnp.zeros(30, bool))
    state, _ = refresh(agent.observe(agent.init(keys[3], **BOTH), data))
    for _ in range(num_updates):
        state, _ = learn_once(state)
    return state


@pytest.mark.slow
def test_networks_begin_anew_after_so_many_updates_and_not_before():
    for num_updates, is_due in ((5, False), (6, True), (7, True)):
        before = learned(num_updates).learner
        after = roll_out(learned(num_updates)).learner
        for name in ("actor", "critic", "target_critic", "unet", "target_unet"):
            old, new = (jax.tree.leaves(getattr(x, name)["params"]) for x in (before, after))
            changed = [bool((a != b).any()) for a, b in zip(old, new, strict=True)]
            assert any(changed) == is_due, name
        # Adam counts from 0 again: the next reset is as far away as the first.
        assert bool(resets.is_due(before, CONFIG)) == is_due
        assert not resets.is_due(after, CONFIG)


@pytest.mark.slow
def test_what_is_known_of_the_task_stays():
    before = learned(6)
    after = roll_out(learned(6))
    for name in ("log_temperature", "local_max", "num_updates"):
        assert getattr(after.learner, name) == getattr(before.learner, name) != 0.0, name
    for one, other in zip(
        networks.statistics(after.learner.critic),
        networks.statistics(before.learner.critic),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert networks.statistics(after.learner.actor)[0].mean() > 4.0
    for name in ("dynamics", "replay"):
        for one, other in zip(
            jax.tree.leaves(getattr(after, name)),
            jax.tree.leaves(getattr(before, name)),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_each_seed_has_its_own_turn():
    states = jax.tree.map(lambda *x: jnp.stack(x), learned(6, seed=1), learned(5, seed=2))
    after = jax.vmap(roll_out)(states).learner
    kernel = lambda learner: learner.actor["params"]["MLP_0"]["Dense_0"]["kernel"]
    changed = (kernel(after) != kernel(states.learner)).any((1, 2))
    np.testing.assert_array_equal(changed, [True, False])


def test_without_a_model_there_are_no_resets():
    with pytest.raises(ValueError, match=r"reset_every 10 .*'replay'"):
        dataclasses.replace(presets.get("sac"), reset_every=10)
    with pytest.raises(ValueError, match="reset_every"):
        Config(reset_every=-1)
    assert presets.offline(CONFIG).reset_every == 0
