"""Environments in processes of their own: the same as in one, and what happens when one ends."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from qusac_jax import environments
from tests.outer_env import PLACE

SHORT = "gym:tests.short_env:Short-v0"  # ends and is cut off within a few steps
SEEDS = [3, 4, 5]


@pytest.fixture
def env():
    """Three environments in two processes, for a test that ends them."""
    vector = environments.vector(SHORT, SEEDS, num_processes=2)
    vector.reset()
    yield vector
    vector.close()


@pytest.fixture(scope="module")
def both():
    """Three environments in two processes, and in this one."""
    pair = [environments.vector(SHORT, SEEDS, action_cost=0.1, num_processes=n) for n in (2, 1)]
    yield pair
    for vector in pair:
        vector.close()


def actions(num_steps, seed=0):
    drawn = np.random.default_rng(seed).uniform(-1, 1, (num_steps, len(SEEDS), 1))
    return [x.astype(np.float32 if t % 2 else np.float64) for t, x in enumerate(drawn)]


def assert_same_steps(env, expected, num_steps, *, active=None):
    for action in actions(num_steps):
        for field, got, wanted in zip(
            environments.StepResult._fields,
            env.step(action, active),
            expected.step(action, active),
            strict=True,
        ):
            np.testing.assert_array_equal(got, wanted, err_msg=field)
            assert got.dtype == wanted.dtype, field


def test_they_are_those_of_one_process(both):
    env, expected = both
    assert isinstance(env, environments.ProcessVector)
    assert (len(env), env.spec) == (3, expected.spec)
    np.testing.assert_array_equal(env.reset(), expected.reset())
    assert_same_steps(env, expected, 20)
    assert_same_steps(env, expected, 5, active=np.array([True, False, True]))
    assert_same_steps(env, expected, 5, active=[0, 1, 1])


def test_their_state_goes_on_in_any_number_of_processes(both):
    env, expected = both
    env.reset()
    expected.reset()
    assert_same_steps(env, expected, 5)
    saved = env.state()
    assert saved.keys() == expected.state().keys()
    for key, value in expected.state().items():
        np.testing.assert_array_equal(saved[key], value, err_msg=key)
    others = [environments.vector(SHORT, [7, 8, 9], num_processes=n) for n in (3, 1)]
    for other in others:
        np.testing.assert_array_equal(other.set_state(saved), saved["observation"])
    assert_same_steps(*others, 15)
    others[0].close()


def test_mistakes_are_those_of_one_process(both):
    env, _ = both
    env.reset()
    with pytest.raises(ValueError, match=r"actions must have shape \(3, 1\)"):
        env.step(np.zeros((2, 1)))
    with pytest.raises(ValueError, match=r"action for 'gym:tests\.short_env.* finite"):
        env.step([[0.0], [np.nan], [0.0]])
    with pytest.raises(ValueError, match=r"active must have shape \(3,\), one for each env"):
        env.step(np.zeros((3, 1)), [True])
    # The others' answers to that are not left over.
    np.testing.assert_array_equal(env.step(np.zeros((3, 1)), np.zeros(3, bool)).reward, np.zeros(3))
    few = {key: value[:2] for key, value in env.state().items()}
    with pytest.raises(ValueError, match=r"'observation' must be float32\[3, "):
        env.set_state(few)
    with pytest.raises(ValueError, match="there is no environment 'nonsense'"):
        environments.vector("nonsense", SEEDS, num_processes=2)
    with pytest.raises(ValueError, match="num_processes must be at least 1, got 0"):
        environments.vector(SHORT, SEEDS, num_processes=0)


@pytest.mark.slow
def test_they_wait_for_the_process_that_started_them_when_signalled(env):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        for worker in env._workers:
            os.kill(worker._process.pid, number)
    assert env.state()["observation"].shape == (3, 3)
    # One that has ended is an error, and the end of the other.
    processes = [worker._process for worker in env._workers]
    os.kill(processes[1].pid, signal.SIGKILL)
    with pytest.raises(ChildProcessError, match="has ended, exit status -9; continue from the"):
        env.step(np.zeros((3, 1)))
    assert [process.poll() for process in processes] == [0, -9]


@pytest.mark.slow
def test_programs_that_an_environment_starts_can_be_ended():
    env = environments.vector("gym:tests.outer_env:Simulator-v0", SEEDS, num_processes=2)
    env.reset()
    np.testing.assert_array_equal(env.step(np.zeros((3, 1))).reward, [-signal.SIGTERM] * 3)
    env.close()


@pytest.mark.slow
def test_environments_are_closed(tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path))
    env = environments.vector("gym:tests.outer_env:Closing-v0", SEEDS, num_processes=2)
    env.reset()
    env.close()
    assert len(list(tmp_path.iterdir())) == 3


def test_an_answer_that_was_not_read_is_not_taken_for_another(env, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(env._workers[0]), "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            env.step(np.zeros((3, 1)))
    with pytest.raises(RuntimeError, match="closed, or were interrupted; make new ones"):
        env.state()


@pytest.mark.slow
def test_they_end_with_the_process_that_started_them():
    code = (
        "import os, signal\n"
        "from qusac_jax import environments\n"
        f"env = environments.vector({SHORT!r}, [1, 2], num_processes=2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # The pipe is theirs, too: it is at its end when all of them are.
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=120)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_those_that_hang_end_with_it_too(tmp_path):
    code = (
        "import os, pathlib, threading, time\n"
        "from qusac_jax import environments\n"
        "env = environments.vector('gym:tests.outer_env:Hanging-v0', [1, 2], num_processes=2)\n"
        "env.reset()\n"
        "threading.Thread(target=env.step, args=([[0.0], [0.0]],), daemon=True).start()\n"
        f"place = pathlib.Path({str(tmp_path)!r})\n"
        "while len(list(place.iterdir())) < 2:\n"
        "    time.sleep(0.1)\n"
        "os._exit(3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {PLACE: str(tmp_path)},
        stdout=subprocess.PIPE,  # theirs, too: it is at its end when all of them are
        timeout=120,
    )
    assert done.returncode == 3
