"""A new agent on the data and models of a saved run."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from experiments.saved_run import SavedRun
from experiments.studies import frozen, frozen_data
from qusac_jax import environments
from qusac_jax.qusac import presets


@pytest.mark.slow
def test_what_is_learned_from_does_not_change_and_the_agent_does(tiny_run):
    saved = SavedRun(tiny_run)
    old = jax.tree.map(lambda x: x[1], saved.state(80))
    config = dataclasses.replace(saved.config, critic_steps=2)
    start = frozen_data.new_agent(saved, old, config, seed=3)
    for same in ("dynamics", "replay"):
        for one, other in zip(
            jax.tree.leaves(getattr(start, same)), jax.tree.leaves(getattr(old, same)), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert start.learner.num_updates == old.learner.num_updates > 0
    assert start.learner.log_temperature == old.learner.log_temperature
    assert start.learner.local_max == old.learner.local_max
    weights = jax.tree.leaves(start.actor)
    assert any((a != b).any() for a, b in zip(weights, jax.tree.leaves(old.actor), strict=True))
    per_refresh = config.rollout_interval * config.updates_per_step
    counts = {"num_updates": 3 * per_refresh, "line": 2 * per_refresh}
    rows = list(frozen_data.measure(saved, start, config, episodes=2, **counts))
    # A line after two refreshes, and one at the end.
    assert [row.updates for row in rows] == [2 * per_refresh, 3 * per_refresh]
    assert np.isfinite(rows).all()


@pytest.mark.slow
def test_what_the_models_pay_is_inside_what_d_has_paid(tiny_run):
    saved = SavedRun(tiny_run)
    state = jax.tree.map(lambda x: x[0], saved.state(80))
    never = environments.TERMINATIONS["never"]
    config, task = saved.config, dataclasses.replace(saved.task, termination=never)
    data, size = state.replay.data, int(state.replay.size)
    # Beyond what D holds there is nothing to be inside of.
    reward = np.where(np.arange(len(data.reward)) < size, 0.25, 99.0).astype(np.float32)
    state = state._replace(replay=state.replay._replace(data=data._replace(reward=reward)))
    found = frozen_data.discounted_in_models(
        state, data.observation[:3], jax.random.key(0), config=config, task=task, num_draws=2
    )
    steps = np.ceil(np.log(0.02) / np.log(config.discount))
    by_hand = 0.25 * (1 - config.discount**steps) / (1 - config.discount)
    np.testing.assert_allclose(found, [by_hand] * 3, rtol=1e-4)
    assert by_hand == pytest.approx(0.98 * 0.25 / (1 - config.discount), rel=0.01)


@pytest.mark.slow
def test_a_table_is_printed_and_mistakes_are_one_line(tiny_run, tmp_path, capsys):
    changes = tmp_path / "changes.json"
    command = ["frozen_data", str(tiny_run), "--num_updates=1", "--episodes=1"]
    changes.write_text(json.dumps({"critic_hidden": [16]}))
    assert frozen_data.main([*command, f"--config_file={changes}"]) == 0
    out = capsys.readouterr().out
    assert "critic_hidden (16,)" in out
    assert out.count("\n| ") == 3  # head, rule, one line
    for fields, message in (
        ({"num_members": 7}, "num_members must be that of the run"),
        ({"critic_data": "replay", "method": "ensemble_mean"}, "uses no model"),
    ):
        changes.write_text(json.dumps(fields))
        assert frozen_data.main([*command, f"--config_file={changes}"]) == 2
        assert message in capsys.readouterr().err
    assert frozen_data.main([*command, "--step=7"]) == 2
    assert "step must be one of" in capsys.readouterr().err


def test_what_is_set_otherwise_has_its_full_name():
    before = presets.get("qusac")
    dynamics = dataclasses.replace(before.dynamics, batch_size=64)
    assert frozen.changes(before, dataclasses.replace(before, batch_size=64)) == "batch_size 64"
    after = dataclasses.replace(before, dynamics=dynamics)
    assert frozen.changes(before, after) == "dynamics.batch_size 64"
    assert frozen.changes(before, before) == ""
