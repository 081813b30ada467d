"""Counts of disagreements, against transitions made to disagree."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import seeds
from experiments.training import termination_check
from experiments.training.termination_check import TerminationCheck
from qusac_jax import qusac
from qusac_jax.qusac import replay
from qusac_jax.qusac.config import Config

CAPACITY = 6


def positive(observation, action, next_observation):
    return next_observation[..., 0] > 0


def transitions(successors, ended):
    """For one seed; each is a batch of one."""
    for successor, end in zip(successors, ended, strict=True):
        one = jnp.full((1, 1), float(successor))
        yield qusac.Transition(one, one, one[:, 0], one, jnp.full((1,), bool(end)))


@pytest.fixture
def check(monkeypatch):
    monkeypatch.setattr(termination_check, "_CHUNK", 4)
    task = qusac.Task(1, 1, positive)
    mapped = functools.partial(seeds.mapped, placement=None)
    return TerminationCheck(Config(), task, 2, mapped)


def test_data_that_seeds_share_are_said_once(capsys):
    task = qusac.Task(1, 1, positive)
    mapped = functools.partial(seeds.mapped, placement=None)
    check = TerminationCheck(Config(), task, 2, mapped, is_shared=True)
    one = replay.init(CAPACITY, 1, 1)
    for transition in transitions([1, -1, 1], [0, 1, 0]):
        one = replay.add(one, transition)
    check.update(jax.tree.map(lambda x: jnp.stack([x, x]), one), 3, "dataset")
    assert "of 3 transitions, 1 ended their episode where it does not, and 2 did not" in (
        capsys.readouterr().err
    )
    assert check.state() == {"transitions": 3, "missed": [1, 1], "invented": [2, 2]}


def test_new_transitions_are_counted_once_and_said_once(check, capsys):
    buffers = [replay.init(CAPACITY, 1, 1)] * 2
    # Of two seeds: where the function says an end, and where the environment did.
    said = [[1, -1, -1, -1, 1, 1, -1, -1, -1], [-1, -1, -1, -1, -1, -1, 1, -1, -1]]
    ended = [[1, 0, 1, 0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 1, 0, 0]]
    expected = {2: ([0, 0], [0, 0]), 5: ([1, 0], [1, 0]), 9: ([3, 0], [1, 0])}
    streams = [list(transitions(*pair)) for pair in zip(said, ended, strict=True)]
    for step in range(1, 10):
        buffers = [
            replay.add(buffer, stream[step - 1])
            for buffer, stream in zip(buffers, streams, strict=True)
        ]
        if step in expected:
            both = jax.tree.map(lambda *x: jnp.stack(x), *buffers)
            check.update(both, step, f"step {step}")
            missed, invented = expected[step]
            assert check.state() == {"transitions": step, "missed": missed, "invented": invented}
    err = capsys.readouterr().err
    assert err.count("disagrees") == 1
    assert "step 5: the termination 'positive'" in err
    assert "of 10 transitions, 1 ended their episode where it does not, and 1 did not" in err


def test_what_was_written_over_is_left_out(check, capsys):
    # Nine transitions in room for six, all of which the function misses.
    buffer = replay.init(CAPACITY, 1, 1)
    for transition in transitions([-1] * 9, [1] * 9):
        buffer = replay.add(buffer, transition)
    check.update(jax.tree.map(lambda x: jnp.stack([x, x]), buffer), 9, "step 9")
    assert check.state() == {"transitions": 6, "missed": [6, 6], "invented": [0, 0]}
    assert "of 12 transitions, 12 ended their episode" in capsys.readouterr().err


def test_counts_are_continued(check):
    check.restore({"transitions": 7, "missed": [1, 2], "invented": [0, 3]}, 9)
    assert check.state() == {"transitions": 7, "missed": [1, 2], "invented": [0, 3]}


def test_nothing_is_counted_where_no_rollout_asks():
    config = qusac.presets.get("sac")
    mapped = functools.partial(seeds.mapped, placement=None)
    check = TerminationCheck(config, qusac.Task(1, 1, positive), 1, mapped)
    assert not check.is_needed
    buffer = replay.full(next(transitions([-1], [1])))
    check.update(jax.tree.map(lambda x: np.asarray(x)[None], buffer), 1, "step 1")
    assert check.state()["transitions"] == 0
