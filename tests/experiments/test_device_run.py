"""Whole runs on the device, against the same run with its environments stepped by the host."""

import collections
import dataclasses
import functools
import json
import os
import shutil
import signal
import types

import jax
import numpy as np
import pytest

from experiments import cli, online
from experiments.run_directory import RunDirectory
from experiments.training import device_loop
from experiments.training.device_run import DeviceRun
from experiments.training.online_run import OnlineRun
from experiments.training.setup import Setup
from qusac_jax import environments
from qusac_jax.qusac import presets
from qusac_jax.qusac.config import Config
from tests import programs, run_files
from tests.sizes import small

ENV = "functional:tests.pendulum:Pendulum"
CONFIG = small(Config(num_members=2))
SEEDS = [0, 1]
run = functools.partial(programs.run, "online", num_devices=1)


def make(kind, path, config=CONFIG, env=ENV, num_steps=50):
    setup = Setup(
        RunDirectory(path, {"env": env}),
        env,
        config,
        environments.spec(env).task(),
        seeds=SEEDS,
        num_steps=num_steps,
        action_cost=0.1,
        eval_every=20,
        eval_episodes=3,
        checkpoint_every=15,
        reward_threshold=0.5,
        devices=jax.devices()[:1],
    )
    return kind(setup)


def metrics(of_run):
    return run_files.metrics(of_run._directory.path)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same run, stepped by the host and on the device."""
    path = tmp_path_factory.mktemp("runs")
    runs = [make(kind, path / kind.__name__) for kind in (OnlineRun, DeviceRun)]
    for each in runs:
        assert each.train(lambda: None) is None
    return runs


@pytest.mark.slow
def test_transitions_are_those_of_the_loop_on_the_host(both):
    host, device = ([*each._state.replay.data, each._action] for each in both)
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
    assert not plan.roll_out.any()
    often = dataclasses.replace(CONFIG, roll_out_every=2)
    plan = device_loop.plan(5, 15, 20, config=often)
    assert (np.flatnonzero(plan.roll_out) + 6).tolist() == [10, 14]
    assert (np.flatnonzero(plan.learn) + 6).tolist() == list(range(8, 16))


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "roll_out_every"), [("sac", 0), ("mbpo", 2)])
def test_other_agents_run_as_on_the_host(preset, roll_out_every, tmp_path):
    config = dataclasses.replace(small(presets.PRESETS[preset]), roll_out_every=roll_out_every)
    runs = [
        make(kind, tmp_path / kind.__name__, config, num_steps=24)
        for kind in (OnlineRun, DeviceRun)
    ]
    for each in runs:
        each.train(lambda: None)
    host, device = map(metrics, runs)
    for name in host.dtype.names:
        np.testing.assert_allclose(device[name], host[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_interrupted_and_continued_equals_undisturbed(both, tmp_path):
    stops = iter([None, None, signal.SIGTERM])  # at the start, after step 15, after step 20
    first = make(DeviceRun, tmp_path / "run")
    assert first.train(lambda: next(stops)) == signal.SIGTERM
    assert first.step == 20
    first._directory.close()
    second = make(DeviceRun, tmp_path / "run")
    second.resume("latest")
    assert second.step == 20
    assert second.train(lambda: None) is None
    paths = [each._directory.path / "metrics.csv" for each in (both[1], second)]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.slow
def test_an_environment_that_diverges_stops_the_run_and_is_named(tmp_path):
    diverging = make(DeviceRun, tmp_path / "run", env="functional:tests.pendulum:Exploding")
    with pytest.raises(ValueError, match="Exploding' returned an observation or a reward that is"):
        diverging.train(lambda: None)
    lost = make(DeviceRun, tmp_path / "lost", env="functional:tests.pendulum:LostLater")
    lost.prepare()
    steps = (lost._advance() for _ in range(4))  # and no evaluation, which would notice, too
    with pytest.raises(ValueError, match=r"LostLater' returned .* not finite at step \d+; its"):
        collections.deque(steps, maxlen=0)


TINY = [
    f"--env={ENV}",
    "--num_steps=60",
    "--num_seeds=2",
    "--eval_every=20",
    "--eval_episodes=2",
    "--checkpoint_every=10",
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
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The workdir of a run of the program that nothing has disturbed, on one device."""
    workdir = tmp_path_factory.mktemp("runs") / "alone"
    code, out, err = run(*TINY, f"--workdir={workdir}")
    assert code == 0, out + err
    return workdir


@pytest.mark.slow
def test_the_program_runs_on_the_device_by_itself_and_survives_kill_9(alone, tmp_path):
    killed = tmp_path / "killed"
    summary = json.loads((alone / "summary.json").read_text())
    assert summary["steps"] == 60
    assert summary["compilations"]["run_steps"] == 1
    assert summary["compilations"]["run_episodes"] == 1
    assert summary["compilations"]["diagnose"] == 1
    assert "train_step" not in summary["compilations"]
    process = programs.start("online", *TINY, f"--workdir={killed}", num_devices=1)
    programs.wait_until(lambda: programs.has_checkpoint(killed), process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=120)
    if process.returncode == 0:
        pytest.skip("it was done before it could be killed")
    code, out, err = run(*TINY, f"--workdir={killed}")
    assert code == 0, out + err
    assert "continuing at step" in out
    assert (alone / "metrics.csv").read_bytes() == (killed / "metrics.csv").read_bytes()


@pytest.mark.slow
def test_a_continued_run_compiles_once_and_its_episodes_can_begin_anew(alone, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(alone, workdir)
    for num_steps, flags in ((120, []), (180, ["--resume_env=restart"])):
        code, out, err = run(*TINY, f"--num_steps={num_steps}", *flags, f"--workdir={workdir}")
        assert code == 0, out + err
        assert f"continuing at step {num_steps - 60}" in out
        summary = json.loads((workdir / "summary.json").read_text())
        compilations = summary["compilations"]
        assert (compilations["run_steps"], compilations["run_episodes"]) == (1, 1)
    code, _, err = run(*TINY, "--num_steps=240", f"--workdir={workdir}")
    assert code == 2
    assert "does not hold" in err


@pytest.mark.slow
def test_a_profile_has_a_call_of_learning_steps_and_changes_nothing(alone, tmp_path):
    flags = [*TINY, "--checkpoint_every=20", f"--profile={tmp_path}/trace"]
    code, out, err = run(*flags, f"--workdir={tmp_path}/run")
    assert code == 0, out + err
    assert run_files.trace_events(tmp_path / "trace").count("learning_step") == 1
    assert (alone / "metrics.csv").read_bytes() == (tmp_path / "run" / "metrics.csv").read_bytes()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["compilations"]["run_steps"] == 1


@pytest.mark.slow
def test_a_task_of_brax_is_learned_from(tmp_path):
    pytest.importorskip("brax")
    flags = [*TINY, "--preset=sac", "--env=brax:inverted_pendulum"]
    code, out, err = run(*flags, f"--workdir={tmp_path}/run")
    assert code == 0, out + err
    rows = run_files.metrics_rows(tmp_path / "run")
    # A reward of 1 for every step that the pole stands, and an untrained policy lets it fall.
    assert all(2 <= float(row["eval_task_return"]) < 1000 for row in rows)
    assert float(rows[-1]["replay_size"]) == 60
    assert np.isfinite(float(rows[-1]["critic_loss"]))


def test_the_device_is_selected_before_an_environment_makes_arrays(monkeypatch, capsys):
    calls = []

    def spec(*_):
        calls.append("spec")
        raise ValueError("enough")

    monkeypatch.setattr(cli, "select_device", lambda kind: calls.append(kind))
    monkeypatch.setattr(environments, "spec", spec)
    assert online.main(["online", f"--env={ENV}", "--device=cpu"]) == 2
    assert "enough" in capsys.readouterr().err
    assert calls == ["cpu", "spec"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env=brax:hoper"], "did you mean 'brax:hopper'"),
        (["--env=functional:tests.pendulum:Pendlum"], "did you mean 'Pendulum'"),
        ([f"--env={ENV}", "--video"], "leave --video out"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(tmp_path, run_here, arguments, message):
    code, out, err = run_here(f"--workdir={tmp_path / 'run'}", *arguments)
    assert code == 2, out + err
    assert message in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("num_steps", "steps"), [(10, 10), (9_000, 1_000)])
def test_a_signal_is_answered_after_one_call_at_the_most(num_steps, steps):
    intervals = {"eval_every": 1_000, "checkpoint_every": 5_000}
    options = types.SimpleNamespace(num_steps=num_steps, **intervals)
    said = online._stops_within(options, Config(), DeviceRun)
    assert said == f", after up to {steps} steps and an evaluation, which are one call each"
