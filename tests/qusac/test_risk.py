"""Schedules of λ, and that the actor follows them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qusac_jax.qusac import (
    agent,
    diagnostics,
    estimates,
    losses,
    multistep,
    networks,
    presets,
    replay,
    risk,
)
from qusac_jax.qusac import learner as learner_lib
from qusac_jax.qusac import parts as parts_lib
from qusac_jax.qusac.config import Config
from qusac_jax.task import Task, Transition
from tests.sizes import small
from tests.tasks import ends_beyond


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("linear:-1:1:200", [-1.0, -0.5, 0.0, 1.0, 1.0]),
        # Half a turn of the cosine: cos(pi / 4) after a quarter of the way.
        ("cosine:-1:1:200", [-1.0, -np.sqrt(0.5), 0.0, 1.0, 1.0]),
        ("linear:1:0:50", [1.0, 0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_schedules_go_from_start_to_end_and_stay(text, values):
    schedule = risk.parse(text)
    found = [float(schedule(count)) for count in (0, 50, 100, 200, 900)]
    np.testing.assert_allclose(found, values, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("linaer:1:0:5", "did you mean 'linear'"),
        ("linear:1:0", "must be KIND:START:END:UPDATES"),
        ("linear:1:0:5:6", "must be KIND:START:END:UPDATES"),
        ("linear:a:0:5", "must be KIND:START:END:UPDATES"),
        ("linear:1:0:2.5", "must be KIND:START:END:UPDATES"),
        ("linear:1:inf:5", "finite ends"),
        ("linear:1:0:0", "1 to 1000000000 updates"),
        ("linear:1:0:5000000000", "1 to 1000000000 updates"),
        (5, "must be KIND:START:END:UPDATES"),
    ],
)
def test_mistakes_are_named_when_the_config_is_made(text, message):
    with pytest.raises(ValueError, match=message):
        Config(risk_schedule=text)


def test_a_schedule_to_hold_back_is_needed():
    with pytest.raises(ValueError, match="there is none; give one, such as linear:1:0:100000"):
        Config(risk_awaits_reward=True)


@pytest.mark.slow
@pytest.mark.parametrize(("awaits", "unrewarded"), [(True, 0), (False, 5)])
def test_a_schedule_may_wait_for_a_positive_reward(awaits, unrewarded):
    config = small(
        dataclasses.replace(
            presets.get("sac"), risk_schedule="linear:20:0:10", risk_awaits_reward=awaits
        )
    )
    task = Task(3, 1, ends_beyond(9.0))
    run = jax.jit(functools.partial(agent.learn, config=config, task=task, num_updates=5))
    costs = replay.init(4, 3, 1).data._replace(reward=jnp.array([0.0, -1.0, -0.5, 0.0]))
    state = agent.observe(agent.init(jax.random.key(0), config=config, task=task), costs)
    state, _ = run(state)
    assert int(state.learner.num_updates) == unrewarded
    values = diagnostics.diagnose(state, jax.random.key(1), config=config, task=task)
    assert float(values["risk"]) == 20.0 - 2.0 * unrewarded
    state, _ = run(agent.observe(state, costs._replace(reward=-costs.reward)))
    assert int(state.learner.num_updates) == unrewarded + 5
    # A schedule that has begun ends, even when D has lost its rewards.
    lost = state.replay.data._replace(reward=jnp.zeros_like(state.replay.data.reward))
    state, _ = run(state._replace(replay=state.replay._replace(data=lost)))
    assert int(state.learner.num_updates) == unrewarded + 10


@pytest.mark.slow
@pytest.mark.parametrize("highest", [0.0, 1.0])
def test_a_schedule_that_waits_stays_at_its_start(highest):
    waiting = small(
        dataclasses.replace(
            presets.get("qusac"),
            method="ensemble_var",
            risk_schedule="linear:20:0:10",
            risk_awaits_reward=True,
        )
    )
    fixed = dataclasses.replace(waiting, risk=20.0, risk_schedule=None, risk_awaits_reward=False)
    task = Task(3, 1, ends_beyond(9.0))
    keys = jax.random.split(jax.random.key(0), 4)
    observation = jax.random.normal(keys[0], (31, 3))
    data = Transition(
        observation[:-1],
        jax.random.uniform(keys[1], (30, 1), minval=-1.0),
        jax.random.uniform(keys[2], (30,), minval=highest - 1.0, maxval=highest),
        observation[1:],
        jnp.zeros(30, bool),
    )
    actors = []
    for config in (waiting, fixed):
        verb = lambda f, config=config, **more: jax.jit(
            functools.partial(f, config=config, task=task, **more)
        )
        state = agent.observe(agent.init(keys[3], config=config, task=task), data)
        state, _ = verb(agent.refresh)(state)
        state, _ = verb(agent.learn, num_updates=5)(state)
        actors.append(jax.tree.leaves(state.actor))
    # Two programs, which may round differently; an update moves weights by 3e-4.
    same = [np.allclose(a, b, rtol=0.0, atol=1e-6) for a, b in zip(*actors, strict=True)]
    assert all(same) == (highest == 0.0)


def test_relative_risk_needs_a_unet():
    with pytest.raises(ValueError, match=r"relative_risk needs .* got 'ensemble_var'; use one of"):
        Config(method="ensemble_var", relative_risk=True)


def test_relative_risk_is_in_units_of_the_largest_uncertainty():
    config = Config(risk=20.0, discount=0.6, relative_risk=True)
    parts = parts_lib.build(config, 1)
    learner = parts_lib.init(jax.random.key(0), config, 3, 1)._replace(local_max=jnp.array(0.36))
    # The largest sqrt(U) is sqrt(0.36 / (1 - 0.36)) = 0.75.
    assert estimates.current_risk(parts, learner) == pytest.approx(20.0 / 0.75)
    known = learner._replace(local_max=jnp.array(0.0))
    assert np.isfinite(estimates.current_risk(parts, known))
    absolute = parts_lib.build(dataclasses.replace(config, relative_risk=False), 1)
    assert estimates.current_risk(absolute, learner) == 20.0


@pytest.mark.slow
def test_the_actor_is_trained_with_the_risk_of_its_update():
    config = Config(
        method="ensemble_var",
        risk=77.0,  # which the schedule takes the place of
        risk_schedule="linear:-1:1:2",
        num_members=2,
        batch_size=4,
        actor_hidden=(8,),
        critic_hidden=(8,),
    )
    keys = jax.random.split(jax.random.key(0), 4)
    batch = Transition(
        jax.random.normal(keys[0], (4, 3)),
        jax.random.uniform(keys[1], (4, 1)),
        jnp.zeros(4),
        jax.random.normal(keys[2], (4, 3)),
        jnp.zeros(4, bool),
    )
    steps = multistep.single(batch)
    groups = jax.tree.map(lambda x: jnp.stack([x, x]), steps)
    start = parts_lib.init(keys[3], config, 3, 1)
    updated = start
    for expected in (-1.0, 0.0, 1.0, 1.0):
        fixed = dataclasses.replace(config, risk=expected, risk_schedule=None)
        same, _ = learner_lib.update(updated, groups, batch, None, keys[0], config=fixed)
        updated, _ = learner_lib.update(updated, groups, batch, None, keys[0], config=config)
        for one, other in zip(
            jax.tree.leaves(updated.actor), jax.tree.leaves(same.actor), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    assert int(updated.num_updates) == 4
    # The standard deviations that the risk multiplies are not 0, or any risk would do.
    critic = networks.Critic(config.critic_hidden, config.num_groups, config.num_critics)
    q = losses.group_value(networks.apply(critic, start.critic, batch.observation, batch.action))
    assert float(q.std(0).min()) > 1e-3
