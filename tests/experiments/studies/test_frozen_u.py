"""What a U-net says, against rollouts of its policy."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.saved_run import SavedRun
from experiments.studies import frozen_u
from qusac_jax.qusac import agent, presets
from qusac_jax.task import Task
from tests.networks import constant
from tests.sizes import small
from tests.tasks import ends_beyond


def test_U_of_rollouts_is_what_is_propagated_along_them():
    # Members that expect the same changes everywhere, 0, 1 and 2 deviations: a disagreement of 1 at
    # every step until the episode ends, and a U-net that says 3.
    config = dataclasses.replace(small(presets.get("explore")), num_members=3, discount=0.9)
    config = dataclasses.replace(config, method="disagreement")
    task = Task(2, 1, ends_beyond(10.5))
    state = agent.init(jax.random.key(0), config=config, task=task)
    params = constant(
        state.dynamics.params, jnp.zeros((3, 6)).at[:, :2].set(jnp.arange(3.0)[:, None])
    )
    state = state._replace(
        dynamics=state.dynamics._replace(params=params, noise_scale=jnp.zeros((3, 3))),
        learner=state.learner._replace(unet=constant(state.learner.unet, np.log(3.0))),
    )
    begin = jnp.array([[-1e3, 0.0], [10.0, 0.0]])
    said, met, local = jax.jit(frozen_u.compare, static_argnames=("config", "task", "num_draws"))(
        state, begin, jax.random.key(1), config=config, task=task, num_draws=50
    )
    np.testing.assert_allclose(said, 3.0 * 1e-6, rtol=1e-5)  # in units of this method
    np.testing.assert_allclose(local[:, 0], 1.0, rtol=1e-5)
    np.testing.assert_allclose(met[0], (1 - 0.81 ** len(local)) / 0.19, rtol=1e-5)
    # From 10, one member stays and the others end the episode: 1 + 0.81 / 3 + ...
    np.testing.assert_allclose(met[1], 1 / (1 - 0.81 / 3), rtol=0.1)


@pytest.mark.slow
def test_the_agent_learns_on_and_D_and_models_stay(tiny_run):
    saved = SavedRun(tiny_run)
    old = jax.tree.map(lambda x: x[1], saved.state(80))
    config = dataclasses.replace(saved.config, unet_steps=2)
    counts = {"states": 5, "num_draws": 3}
    state = frozen_u.old_agent(saved, old, config, seed=3)
    (before,) = frozen_u.measure(saved, state, config, num_updates=0, **counts)
    assert before.updates == 0
    assert np.isfinite(before).all()
    per_refresh = config.rollout_interval * config.updates_per_step
    rows = list(
        frozen_u.measure(
            saved,
            frozen_u.old_agent(saved, old, config, seed=3),
            config,
            num_updates=3 * per_refresh,
            line=2 * per_refresh,
            **counts,
        )
    )
    assert rows[0] == before
    assert [row.updates for row in rows] == [0, 2 * per_refresh, 3 * per_refresh]
    assert len({row.unet_std for row in rows}) == 3
    saved.config = dataclasses.replace(config, method="ensemble_var")
    with pytest.raises(ValueError, match="trains no U-net"):
        frozen_u.old_agent(saved, old, saved.config, seed=3)


@pytest.mark.slow
def test_a_table_is_printed_and_mistakes_are_one_line(tiny_run, tmp_path, capsys):
    changes = tmp_path / "changes.json"
    command = ["frozen_u", str(tiny_run), "--num_updates=1", "--states=4", "--rollouts=2"]
    changes.write_text(json.dumps({"unet_steps": 2}))
    assert frozen_u.main([*command, f"--config_file={changes}"]) == 0
    out = capsys.readouterr().out
    assert "unet_steps 2" in out
    assert out.count("\n| ") == 4  # head, rule, before and after
    for fields, message in (
        ({"unet_hidden": [7]}, "unet_hidden must be that of the run"),
        ({"method": "ensemble_var"}, "method must be that of the run"),
        ({"dynamics.clip_observations": True}, "dynamics must be that of the run"),
    ):
        changes.write_text(json.dumps(fields))
        assert frozen_u.main([*command, f"--config_file={changes}"]) == 2
        assert message in capsys.readouterr().err
