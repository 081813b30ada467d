"""New models on the data of a saved run."""

import dataclasses
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.saved_run import SavedRun
from experiments.studies import frozen_fits


@pytest.mark.slow
def test_errors_are_those_of_held_out_changes_and_fall_with_fits(tiny_run):
    saved = SavedRun(tiny_run)
    old = jax.tree.map(lambda x: x[1], saved.state(80))
    # Changes that can be learned from 57 examples: a two-thousandth of the observation.
    data = old.replay.data
    data = data._replace(next_observation=data.observation + 5e-4 * data.observation)
    old = old._replace(replay=old.replay._replace(data=data))
    unlearned, learned = (
        dataclasses.replace(
            saved.config,
            dynamics=dataclasses.replace(
                saved.config.dynamics,
                learning_rate=rate,
                max_epochs=100,
                patience=100,
                normalize_targets=True,
            ),
        )
        for rate in (1e-9, 1e-2)
    )
    for config in (unlearned, learned):
        rows = list(frozen_fits.measure(saved, old, config, fits=2, seed=3))
        assert [row.fit for row in rows] == [1, 2]
        assert all(0.0 < row.error <= row.worst for row in rows)
        assert all(0.0 <= row.false <= 1.0 for row in rows)
        if config is unlearned:
            # Random functions of about the size of the changes themselves.
            assert rows[-1].error > 0.5
            start = rows[-1].error
        else:
            assert rows[-1].error < 0.5 * start
    again = frozen_fits.measure(saved, old, learned, fits=2, seed=3)
    assert list(again) == rows  # D was not given away


@pytest.mark.slow
def test_a_table_is_printed_and_mistakes_are_one_line(tiny_run, tmp_path, capsys):
    changes = tmp_path / "changes.json"
    command = ["frozen_fits", str(tiny_run), "--fits=1"]
    changes.write_text(json.dumps({"dynamics.normalize_targets": False}))
    assert frozen_fits.main([*command, f"--config_file={changes}"]) == 0
    out = capsys.readouterr().out
    assert "| as it was | 1 |" in out
    assert "| dynamics.normalize_targets False | 1 |" in out
    for fields, message in (
        ({"replay_capacity": 77}, "replay_capacity must be that of the run"),
        ({"critic_data": "replay", "method": "ensemble_mean"}, "nothing to fit"),
    ):
        changes.write_text(json.dumps(fields))
        assert frozen_fits.main([*command, f"--config_file={changes}"]) == 2
        assert message in capsys.readouterr().err


def test_a_row_by_hand(monkeypatch):
    # Two members and two held-out transitions of one component, whose changes deviate by 2.
    mean = jnp.array([[[2.0, 0.9], [0.0, 0.6]], [[-2.0, 0.7], [0.0, 0.1]]])
    std = jnp.full((2, 2, 2), 4.0)
    zeros = jnp.zeros((3, 1))
    data = frozen_fits.qusac.Transition(zeros, zeros, jnp.array([1.0, 0.0, 9.0]), zeros, zeros)
    state = types.SimpleNamespace(
        replay=types.SimpleNamespace(size=2, data=data),
        dynamics=types.SimpleNamespace(change_std=jnp.array([2.0])),
    )
    slots = np.array([0, 1, 2])  # the last holds nothing yet
    monkeypatch.setattr(frozen_fits.fitting_data, "holdout_slots", lambda *_: slots)
    monkeypatch.setattr(frozen_fits.model, "predict", lambda *_, **__: (mean, std))
    saved = types.SimpleNamespace(task=None, about={"reward_threshold": 0.5})
    config = types.SimpleNamespace(dynamics=None)
    row = frozen_fits._row(3, 5, saved, state, config)
    error = np.sqrt(0.5)  # of 1, 0, -1 and 0
    density = -0.5 * 0.5 / 4 - np.log(2) - 0.5 * np.log(2 * np.pi)
    expected = (3, 5, error, error, 2 / error, density, 0.8, 0.5)
    np.testing.assert_allclose(row, expected, rtol=1e-5)
