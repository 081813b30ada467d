"""Whole runs on the device, against the same run with its environments stepped by the host."""

import jax
import numpy as np
import pytest

from experiments import device_loop
from experiments.device_run import DeviceRun
from experiments.online_run import OnlineRun
from experiments.run_directory import RunDirectory
from qusac_jax import environments
from qusac_jax.qusac import presets
from qusac_jax.qusac.config import Config
from tests.sizes import small

ENV = "functional:tests.pendulum:Pendulum"
CONFIG = small(Config(num_members=2))
SEEDS = [0, 1]


def make(kind, path, config=CONFIG, env=ENV, num_steps=50, **changes):
    options = {
        "run_seeds": SEEDS,
        "num_steps": num_steps,
        "action_cost": 0.1,
        "reward_threshold": 0.5,
        "eval_every": 20,
        "eval_episodes": 3,
        "checkpoint_every": 15,
        "devices": jax.devices()[:1],
    }
    directory = RunDirectory(path, {"env": env})
    task = environments.spec(env).task()
    return kind(directory, env, config, task, **options | changes)


def metrics(run):
    return np.genfromtxt(run._directory.path / "metrics.csv", delimiter=",", names=True)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same run, stepped by the host and on the device."""
    path = tmp_path_factory.mktemp("runs")
    runs = [make(kind, path / kind.__name__) for kind in (OnlineRun, DeviceRun)]
    for run in runs:
        assert run.train(lambda: None) is None
    return runs


def test_transitions_are_those_of_the_loop_on_the_host(both):
    host, device = ([*run._state.replay.data, run._action] for run in both)
    for here, there in zip(device, host, strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-4, atol=1e-5)
    assert int(both[1]._state.replay.size[0]) == 50


def test_the_log_is_that_of_the_loop_on_the_host(both):
    host, device = map(metrics, both)
    assert host.dtype.names == device.dtype.names
    assert device["step"].tolist() == [0, 0, 20, 20, 40, 40, 50, 50]
    for name in host.dtype.names:
        np.testing.assert_allclose(device[name], host[name], rtol=1e-3, atol=1e-4, err_msg=name)
    assert np.isfinite(device["train_return"][2:]).all()
    assert np.isfinite(device["critic_loss"][2:]).all()
    assert (device["rewarded_steps"] > 0).any()


def test_what_is_due_is_what_the_schedule_says():
    plan = device_loop.plan(5, 15, 20, config=CONFIG)  # warm-up 8, F = 4
    assert plan.num_steps == 10
    assert (np.flatnonzero(plan.refresh) + 6).tolist() == [8, 12]
    assert (np.flatnonzero(plan.learn) + 6).tolist() == list(range(8, 16))


@pytest.mark.parametrize("preset", ["sac", pytest.param("mbpo", marks=pytest.mark.slow)])
def test_other_agents_run_as_on_the_host(preset, tmp_path):
    config = small(presets.PRESETS[preset])
    runs = [
        make(kind, tmp_path / kind.__name__, config, num_steps=24)
        for kind in (OnlineRun, DeviceRun)
    ]
    for run in runs:
        run.train(lambda: None)
    host, device = map(metrics, runs)
    for name in host.dtype.names:
        np.testing.assert_allclose(device[name], host[name], rtol=1e-3, atol=1e-4, err_msg=name)


TINY = [
    f"--env={ENV}",
    "--num_steps=50",
    "--num_seeds=2",
    "--eval_every=20",
    "--eval_episodes=3",
    "--checkpoint_every=15",
    "--action_cost=0.1",
    "--config.warmup_steps=8",
    "--config.fit_every=4",
    "--config.rollouts_per_step=3",
    "--config.rollout_length=2",
    "--config.updates_per_step=2",
    "--config.replay_capacity=64",
    "--config.batch_size=16",
    "--config.num_members=2",
    "--config.actor_hidden=(8,)",
    "--config.critic_hidden=(8,)",
    "--config.unet_hidden=(8,)",
    "--config.dynamics.hidden=(8,8)",
    "--config.dynamics.max_epochs=3",
]
