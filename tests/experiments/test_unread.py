"""Warnings of hyperparameters without an effect."""

import dataclasses
import re

import jax
import pytest

from experiments import unread
from qusac_jax import qusac
from qusac_jax.qusac import presets
from tests.sizes import small
from tests.tasks import ends_beyond

PLAIN = dataclasses.replace(presets.get("qusac"), method="ensemble_mean")
PAPER = presets.get("paper")
SAC = presets.get("sac")
TASK = qusac.Task(2, 1, ends_beyond(9))
# Another value for each hyperparameter that may have no effect; λ is left in the program, where it
# weighs zeros.
OTHERS = {
    "unet_hidden": (9,),
    "unet_learning_rate": 1.0,
    "clip_u": False,
    "local_max_decay": 0.5,
    "unet_steps": 2,
    "gap_samples": 7,
    "penalty_scale": 3.0,
    "regularizer_weight": 3.0,
    "fit_every": 6,
    "roll_out_every": 3,
    "rollouts_per_step": 4,
    "rollout_length": 3,
    "random_first_actions": 0.5,
    "retain_refreshes": 2,
    "real_ratio": 0.5,
    "num_members": 3,
}


def program(config: qusac.Config) -> str:
    """All that an agent does, as XLA reads it."""

    def run(key):
        state = qusac.init(key, config=config, task=TASK)
        if config.uses_model:
            state, _ = qusac.refresh(state, config=config, task=TASK)
        step = jax.tree.map(lambda x: x[0], state.replay.data)
        return qusac.train_step(state, step, step.observation, config=config, task=TASK)

    text = jax.jit(run).lower(jax.random.key(0)).as_text()
    return re.sub(r"_\d+\b", "", text)  # names are numbered as the process goes


def unread_fields(config: qusac.Config) -> set[str]:
    return {name for names, _ in unread._unread(config, is_offline=False) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("config", [PLAIN, PAPER, SAC])
def test_they_have_no_effect(config):
    config = small(config)
    changed = {name: OTHERS[name] for name in unread_fields(config) & OTHERS.keys()}
    assert changed
    assert program(dataclasses.replace(config, **changed)) == program(config)


@pytest.mark.slow
def test_rollouts_come_with_each_fit_at_the_least():
    config = dataclasses.replace(small(PLAIN), fit_every=4, roll_out_every=9)
    assert "roll_out_every" in unread_fields(config)
    assert program(config) == program(dataclasses.replace(config, roll_out_every=0))


@pytest.mark.parametrize("preset", ["mbpo", "mopo"])
def test_an_uncertainty_that_no_policy_reads_is_named(preset, capsys):
    config = dataclasses.replace(presets.get(preset), method="pombu")
    unread.warn(config, [], is_offline=False)
    said = capsys.readouterr().err
    assert said == "warning: method 'pombu' only logs its uncertainty: risk is 0\n"
    seeking = dataclasses.replace(config, risk_schedule="linear:0:1:100")
    unread.warn(seeking, [], is_offline=False)
    unread.warn(dataclasses.replace(config, risk=-1.0), [], is_offline=False)
    unread.warn(presets.get(preset), [], is_offline=False)
    assert not capsys.readouterr().err


def test_no_unit_of_a_risk_of_zero_has_an_effect(capsys):
    config = dataclasses.replace(PAPER, risk=0.0, relative_risk=True)
    unread.warn(config, ["risk", "relative_risk"], is_offline=False)
    assert "config.relative_risk has no effect: risk is 0\n" in capsys.readouterr().err


@pytest.mark.parametrize(("real_ratio", "is_said"), [(1.0, True), (0.999, True), (0.5, False)])
def test_rollouts_that_no_batch_has_room_for_are_named(real_ratio, is_said, capsys):
    config = dataclasses.replace(PLAIN, real_ratio=real_ratio)
    unread.warn(config, [], is_offline=False)
    said = capsys.readouterr().err
    expected = f"the models are rolled out for nothing: with real_ratio {real_ratio:g} "
    assert (expected in said) == is_said


def test_steps_beyond_a_rollout_are_named_if_they_are_asked_for(capsys):
    config = dataclasses.replace(PAPER, critic_steps=20, unet_steps=5, rollout_length=5)
    unread.warn(config, ["unet_steps"], is_offline=False)
    assert not capsys.readouterr().err
    unread.warn(config, ["critic_steps", "unet_steps"], is_offline=False)
    said = capsys.readouterr().err
    assert said.startswith("warning: config.critic_steps 20 counts as 5: no target looks further")
    assert said.count("\n") == 1


def test_they_are_named_with_the_reason(capsys):
    given = ["risk", "batch_size", "penalty_scale"]
    unread.warn(PLAIN, given, is_offline=False)
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        "warning: config.risk has no effect: method 'ensemble_mean' has no uncertainty for λ to "
        "weigh"
    )
    assert second == "warning: config.penalty_scale has no effect: there is no penalty"
    unread.warn(SAC, ["dynamics.hidden", "fit_every", "roll_out_every", "risk"], is_offline=False)
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == [
        "config.dynamics.hidden",
        "config.fit_every",
        "config.roll_out_every",
        "config.risk",
    ]
    explore = presets.get("explore")
    unread.warn(explore, ["risk", "rollout_length"], is_offline=False)
    assert capsys.readouterr().err == (
        "warning: config.risk has no effect: risk_schedule linear:20:0.5:100000 takes its place\n"
    )
    unread.warn(SAC, ["fit_every"], is_offline=True)  # one call makes so many updates
    unread.warn(explore, ["risk_schedule", "unet_hidden"], is_offline=False)
    assert not capsys.readouterr().err
