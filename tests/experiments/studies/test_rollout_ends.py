"""Critics along rollouts that are cut off."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.studies import rollout_ends
from qusac_jax.qusac import agent, presets, replay
from qusac_jax.task import Task, Transition
from tests.networks import constant, rising
from tests.sizes import small
from tests.tasks import ends_beyond


def test_rows_by_hand():
    # Members move the first component by 0, 1 and 2 a step, to the end beyond 4.5; nothing pays.
    # Critics say 1, 2 and 6, of which the last one falls where the states are not those of D.
    config = dataclasses.replace(small(presets.get("qusac")), num_members=3, rollout_length=3)
    task = Task(2, 1, ends_beyond(4.5))
    state = agent.init(jax.random.key(0), config=config, task=task)
    moves = jnp.zeros((3, 6)).at[:, 0].set(jnp.arange(3.0))
    critic = constant(state.learner.critic, jnp.array([1.0, 2.0, 6.0])[:, None, None])
    state = state._replace(
        dynamics=state.dynamics._replace(
            params=constant(state.dynamics.params, moves),
            target_std=jnp.ones(3),
            noise_scale=jnp.zeros((3, 3)),
        ),
        learner=state.learner._replace(
            critic=rising(critic, jnp.array([0.0, 0.0, -1.0])[:, None], feature=0)
        ),
        replay=replay.add(
            state.replay,
            Transition(
                observation=jnp.zeros((9, 2)),
                action=jnp.zeros((9, 1)),
                reward=jnp.zeros(9),
                next_observation=jnp.zeros((9, 2)),
                terminated=jnp.zeros(9, bool),
            ),
        ),
    )
    rows = list(rollout_ends.measure(state, config, task, states=30, num_draws=2, seed=0))
    assert [row.place for row in rows] == [0, 1, 2, 3]
    # Of the three members, the last one has moved to 6 and out at the third step.
    np.testing.assert_allclose([row.share for row in rows], [1, 1, 1, 2 / 3])
    np.testing.assert_allclose([row.outside for row in rows], [0, 2 / 3, 2 / 3, 1 / 2])
    np.testing.assert_allclose([row.model_return for row in rows], 0, atol=1e-6)
    assert rows[0].spread == pytest.approx(np.std([1, 2, 6], ddof=1))
    assert rows[0].value == pytest.approx(3)
    assert rows[1].value < rows[0].value
    assert rows[1].spread < rows[0].spread
    # Apart from what they say everywhere, only the one that falls differs.
    assert 0 < rows[0].centered < 0.5

    flat = state._replace(learner=state.learner._replace(critic=critic))
    for row in rollout_ends.measure(flat, config, task, states=30, num_draws=2, seed=0):
        assert row.spread == pytest.approx(np.std([1, 2, 6], ddof=1))
        assert row.centered == pytest.approx(0, abs=1e-6)


@pytest.mark.slow
def test_a_table_is_printed_and_mistakes_are_one_line(tiny_run, tmp_path, capsys):
    changes = tmp_path / "changes.json"
    command = ["rollout_ends", str(tiny_run), "--states=4", "--rollouts=2"]
    changes.write_text(json.dumps({"rollout_length": 4}))
    assert rollout_ends.main([*command, f"--config_file={changes}"]) == 0
    out = capsys.readouterr().out
    assert "rollout_length 4" in out
    assert out.count("\n| ") == 7  # head, rule, five places
    changes.write_text(json.dumps({"discount": 0.9}))
    assert rollout_ends.main([*command, f"--config_file={changes}"]) == 2
    assert "discount must be that of the run" in capsys.readouterr().err
