"""What is due when, against Algorithm 2 written out."""

import dataclasses

from qusac_jax.qusac import presets, schedule, state
from qusac_jax.qusac.config import Config

CONFIG = Config(warmup_steps=5, fit_every=3)


def test_warm_up_then_updates_at_every_step_and_a_refresh_at_every_F():
    due = [schedule.online(step, config=CONFIG) for step in range(1, 13)]
    assert [step.learn for step in due] == [False] * 4 + [True] * 8
    assert [i + 1 for i, step in enumerate(due) if step.refresh] == [5, 8, 11]


def test_rollouts_between_fits_are_due_where_asked_for():
    config = dataclasses.replace(CONFIG, fit_every=6, roll_out_every=2)
    due = [schedule.online(step, config=config) for step in range(1, 18)]
    assert [i + 1 for i, step in enumerate(due) if step.refresh] == [5, 11, 17]
    assert [i + 1 for i, step in enumerate(due) if step.roll_out] == [7, 9, 13, 15]
    uneven = dataclasses.replace(config, roll_out_every=4)
    due = [schedule.online(step, config=uneven) for step in range(1, 18)]
    assert [i + 1 for i, step in enumerate(due) if step.roll_out] == [9, 15]
    beyond = dataclasses.replace(config, roll_out_every=7)
    assert not any(schedule.online(step, config=beyond).roll_out for step in range(1, 18))
    often, seldom = state.num_rollouts(config), state.num_rollouts(CONFIG)
    assert (often, seldom) == (2 * CONFIG.rollouts_per_step, 3 * CONFIG.rollouts_per_step)
    assert not any(schedule.online(step, config=CONFIG).roll_out for step in range(1, 18))


def test_nothing_is_learned_before_the_first_refresh():
    for warmup in (3, 4, 7):
        config = dataclasses.replace(CONFIG, warmup_steps=warmup)
        due = [schedule.online(step, config=config) for step in range(1, 20)]
        first = next(step for step in due if step.learn)
        assert first.refresh


def test_without_a_model_nothing_is_refreshed():
    sac = dataclasses.replace(presets.get("sac"), warmup_steps=5)
    due = [schedule.online(step, config=sac) for step in range(1, 400)]
    assert not any(step.refresh for step in due)
    assert sum(step.learn for step in due) == 395


def test_offline_rolls_out_anew_every_F_updates():
    due = [schedule.offline(update, config=CONFIG) for update in range(10)]
    assert [update for update, step in enumerate(due) if step.roll_out] == [0, 3, 6, 9]
    assert not any(step.refresh for step in due)
    assert all(step.learn for step in due)
    assert not schedule.offline(0, config=presets.get("sac", is_offline=True)).roll_out
