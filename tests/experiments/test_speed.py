"""The pace of a run, and what it says of the time that is left."""

import jax
import jax.numpy as jnp
import pytest

from experiments.training import speed
from experiments.training.compilations import CompilationCounter
from experiments.training.trace import Trace


def test_time_left_is_known_once_all_steps_of_an_interval_were_learning_ones(monkeypatch):
    now = 0.0
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now)
    of_run = speed.Speed(Trace(None))
    now = 10.0
    assert of_run.pace(100) == 10.0
    assert of_run.seconds_left(100, 1_000) is None  # of the warm-up, which is fast
    of_run.restart(100)
    with of_run.learning_step():
        now = 20.0
    assert of_run.seconds_left(150, 1_000) is None
    of_run.restart(150)
    with of_run.learning_step():
        now = 70.0
    assert of_run.seconds_left(200, 1_000) == pytest.approx(800.0)


def test_the_rate_is_of_all_steps_but_those_that_compile_in_each_process(monkeypatch):
    now = 0.0
    monkeypatch.setattr(speed.time, "perf_counter", lambda: now)

    def steps(of_run, count, seconds):
        nonlocal now
        with of_run.learning_step(count):
            now += seconds

    first = speed.Speed(Trace(None))
    steps(first, 0, 7.0)  # of the warm-up
    steps(first, 100, 60.0)  # compiles
    assert first.learning_rate() is None
    steps(first, 50, 10.0)
    assert first.learning_rate() == 5.0
    second = speed.Speed(Trace(None))
    second.restore(first.state(), 150)
    steps(second, 100, 60.0)
    steps(second, 50, 40.0)
    assert second.learning_rate() == 2.0  # 100 steps in 50 seconds


def test_a_counter_counts_from_when_it_is_made_and_all_share_one_listener(monkeypatch):
    def counted(x):
        return x - 1

    first = CompilationCounter()
    registered = []
    monkeypatch.setattr(jax.monitoring, "register_event_duration_secs_listener", registered.append)
    jax.jit(counted)(1.0)
    second = CompilationCounter()
    assert (first["counted"], second["counted"]) == (1, 0)
    jax.jit(counted)(jnp.zeros(3))
    assert (first["counted"], second["counted"]) == (2, 1)
    assert first.total > second.total >= 1
    assert not registered
