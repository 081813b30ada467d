"""What an online run takes over from an offline one."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import files
from experiments.training import handover
from qusac_jax import qusac
from qusac_jax.qusac import presets, replay
from qusac_jax.qusac.config import Config, DynamicsConfig
from qusac_jax.task import Task, Transition
from tests.sizes import small
from tests.tasks import ends_beyond

TASK = Task(3, 1, ends_beyond(9.0))


def weights(dynamics):
    """What of the dynamics is arrays; None where there are none."""
    return dynamics if dynamics is None else jax.tree.leaves(dynamics)


@pytest.mark.parametrize("preset", ["sac", "qusac"])
def test_agent_and_data_are_there_and_schedules_begin_anew(monkeypatch, tmp_path, preset):
    config = small(presets.get(preset))

    def two_seeds(config, seed):
        init = lambda key: qusac.init(key, config=config, task=TASK)
        return jax.jit(jax.vmap(init))(jax.random.split(jax.random.key(seed)))

    x = jnp.arange(30.0).reshape(2, 5, 3)
    data = Transition(x, x[..., :1], x[..., 0], x + 1, jnp.zeros((2, 5), bool))
    offline = two_seeds(config, 0)
    offline = offline._replace(
        replay=jax.vmap(replay.full)(data),
        learner=offline.learner._replace(num_updates=jnp.array([7, 7], jnp.int32)),
    )
    monkeypatch.setattr(handover.files, "read_json", lambda *_: {})
    monkeypatch.setattr(handover.config_file, "of_run", lambda *_, **__: config)
    monkeypatch.setattr(handover, "Checkpointer", lambda *_, **__: None)
    monkeypatch.setattr(handover.checkpoint_parts, "agents", lambda *_: offline)
    alone = types.SimpleNamespace(count=1, share=lambda x: x)
    online = two_seeds(dataclasses.replace(config, replay_capacity=8), 1)
    state = handover.take_over(tmp_path, online, TASK, [0, 1], None, alone)
    np.testing.assert_array_equal(state.learner.num_updates, 0)
    begun = offline.learner._replace(num_updates=np.zeros(2, np.int32))
    jax.tree.map(np.testing.assert_array_equal, state.learner, begun)
    jax.tree.map(np.testing.assert_array_equal, *map(weights, (state.dynamics, offline.dynamics)))
    new = jax.tree.map(lambda y: jnp.full((2, 1, *y.shape[2:]), -1).astype(y.dtype), data)
    after = jax.jit(jax.vmap(qusac.observe))(state, new).replay
    np.testing.assert_array_equal(after.size, 6)
    np.testing.assert_array_equal(after.data.reward[:, :5], data.reward)
    np.testing.assert_array_equal(after.data.reward[:, 5], -1)


def test_what_means_the_same_in_both_stays_unless_asked_for():
    offline = Config(
        discount=0.9,
        target_entropy=-3.0,
        real_ratio=0.25,
        dynamics=DynamicsConfig(clip_observations=True, clip_rewards=True, holdout_every=7),
    )
    there, values = (files.flatten(dataclasses.asdict(one)) for one in (offline, Config()))
    changed = {name for name in there if there[name] != values[name]}
    assert changed == {
        "discount",
        "target_entropy",
        "real_ratio",
        "dynamics.clip_observations",
        "dynamics.clip_rewards",
        "dynamics.holdout_every",
    }
    kept = handover.continued(offline, values, ())
    assert {name: kept[name] for name in changed} == {name: there[name] for name in changed}
    asked = handover.continued(offline, values, changed)
    assert {name: asked[name] for name in changed} == {name: values[name] for name in changed}


def test_what_an_agent_only_begins_with_is_said_to_have_no_effect(capsys):
    values = files.flatten(dataclasses.asdict(Config()))
    given = {"initial_temperature", "critic_init_gain", "dynamics.init_scale", "discount"}
    handover.continued(Config(), values, given)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    for name in given - {"discount"}:
        expected = f"config.{name} has no effect: the agent is taken over as it is"
        assert any(expected in line for line in said)
