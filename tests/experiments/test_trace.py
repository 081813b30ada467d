"""--profile: some learning steps without a compilation, in a file that TensorBoard opens."""

import threading
import time

import jax
import jax.numpy as jnp
import pytest

from experiments.training import trace
from experiments.training.trace import Trace
from tests import run_files


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """Only the steps end a recording, however slow the machine is."""
    monkeypatch.setattr(trace, "_SECONDS", 600.0)


@jax.jit
def warm(x):
    return jnp.sin(x) @ x


def step(one, function=warm):
    with one.learning_step():
        function(jnp.ones((2, 2))).block_until_ready()


def test_a_trace_has_learning_steps_and_no_compilation(tmp_path, capsys):
    with Trace(str(tmp_path / "made")) as one:
        for _ in range(8):
            step(one)
        step(one, jax.jit(lambda x: jnp.cos(x) @ x))  # while it is recorded: begins anew
        for _ in range(15):
            step(one)
    names = run_files.trace_events(tmp_path / "made")
    assert names.count("learning_step") == 10
    assert not any("ompile" in name for name in names)
    assert f"s of learning steps in {tmp_path}/made\n" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["plugins"]


def test_a_run_that_ends_in_its_trace_leaves_what_there_is(tmp_path):
    with Trace(str(tmp_path)) as one:  # as Ctrl-C leaves it
        for _ in range(5):
            step(one)
    assert run_files.trace_events(tmp_path).count("learning_step") == 3


def test_a_call_counts_its_steps(tmp_path):
    with Trace(str(tmp_path)) as one:
        for _ in range(9):
            with one.learning_step(4):
                warm(jnp.ones((2, 2))).block_until_ready()
        assert not one.is_wanted
    assert run_files.trace_events(tmp_path).count("learning_step") == 3


def test_a_long_step_is_recorded_in_part(tmp_path, monkeypatch):
    ended = threading.Event()

    class Timer(threading.Timer):  # the time is over as soon as the step has computed
        def run(self):
            assert ended.wait(60)
            self.function()
            ended.clear()

    monkeypatch.setattr(trace.threading, "Timer", Timer)
    with trace.Trace(str(tmp_path)) as one:
        for i in range(3):
            with one.learning_step():
                warm(jnp.ones((2, 2))).block_until_ready()
                if i == 2:
                    ended.set()
                    while ended.is_set():
                        time.sleep(0.01)
        assert list(tmp_path.glob("plugins"))
    assert any("PjitFunction(warm)" in name for name in run_files.trace_events(tmp_path))


def test_a_run_that_ends_before_says_so_and_leaves_nothing(tmp_path, capsys):
    with Trace(str(tmp_path)) as one:
        step(one)
    assert "profile: no trace" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"profile: .*file/folder cannot be written to"):
        Trace(f"{tmp_path}/file/folder")
