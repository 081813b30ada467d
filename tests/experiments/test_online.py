"""The main program as a person runs it: files, interruptions, mistakes."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess

import jax
import numpy as np
import pytest

import qusac_jax
from experiments import online
from experiments.run_directory import RunDirectory
from experiments.training.speed import Speed
from tests import programs
from tests.run_files import change_config, metrics, metrics_rows, trace_events
from tests.tiny import ENV, ONLINE

start = functools.partial(programs.start, "online", num_devices=1)
run = functools.partial(programs.run, "online", num_devices=1)


def children_of(pid):
    found = subprocess.run(["pgrep", "-P", str(pid)], stdout=subprocess.PIPE, text=True)
    return [int(child) for child in found.stdout.split()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "finished"
    code, out, err = run(*ONLINE, f"--workdir={workdir}")
    assert code == 0, out + err
    return workdir


def test_a_run_leaves_everything_behind(finished):
    rows = metrics_rows(finished)
    assert [(float(r["step"]), float(r["seed"])) for r in rows] == [
        (step, seed) for step in (0, 20, 40, 60, 80) for seed in (0, 1)
    ]
    for name in ("eval_return", "eval_task_return", "mean_q", "mean_sqrt_u", "alpha"):
        assert all(np.isfinite(float(row[name])) for row in rows), name
    assert all(np.isfinite(float(row["train_return"])) for row in rows if float(row["step"]))
    assert [float(row["replay_size"]) for row in rows[-2:]] == [60, 60]
    assert all(np.isfinite(float(rows[-1][f"holdout_mse_{n}"])) for n in range(2))
    config = json.loads((finished / "config.json").read_text())
    assert config["env"] == ENV
    assert config["config"]["batch_size"] == 8
    assert config["versions"]["jax"] == jax.__version__
    assert config["versions"]["qusac_jax"] == qusac_jax.__version__
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["steps"] == 80
    assert summary["seeds"] == [0, 1]
    assert len(summary["final_returns"]) == len(summary["final_task_returns"]) == 2
    assert summary["updates_per_second"] > 0
    assert (finished / "learning_curve.png").stat().st_size > 10_000
    assert list((finished / "tensorboard").glob("seed_1/events*"))


def test_a_run_compiles_each_function_once(finished):
    summary = json.loads((finished / "summary.json").read_text())
    once = {name: 1 for name in ("collect", "train_step", "refresh", "diagnose")}
    assert summary["compilations"] == {**once, "act": 2}  # a first draw, and the mean action


@pytest.mark.slow
def test_a_method_of_ones_own_trains_as_the_librarys_does(finished, tmp_path):
    own = "tests.own_functions:upper_bound"
    code, out, err = run(*ONLINE, f"--method={own}", f"--workdir={tmp_path / 'run'}")
    assert code == 0, out + err
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (
        finished / "metrics.csv"
    ).read_bytes()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["method"] == own


@pytest.mark.slow
def test_a_seed_alone_is_the_seed_among_others(finished, tmp_path):
    workdir = tmp_path / "run"
    code, out, err = run(*ONLINE, "--num_seeds=1", "--seed=1", f"--workdir={workdir}")
    assert code == 0, out + err
    both, alone = metrics(finished), metrics(workdir)
    for name in both.dtype.names:
        np.testing.assert_allclose(
            alone[name], both[both["seed"] == 1][name], rtol=1e-2, atol=1e-3, err_msg=name
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "quantity"),
    [
        # The first of two updates throws the critics out; the second one's uncertainty shows it.
        ("critic_learning_rate=1e38", "local_uncertainty"),
        ("dynamics.learning_rate=1e38", "held-out error of the dynamics"),
    ],
)
def test_divergence_stops_the_run_and_names_the_quantity(tmp_path, rate, quantity):
    wild = [f"--config.{rate}", "--checkpoint_every=30"]
    code, _, err = run(*ONLINE, f"--workdir={tmp_path}/run", *wild)
    assert code == 2
    assert f"diverged at step 40: {quantity} is not finite for seeds [0, 1]" in err
    assert "the last good checkpoint is 30" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_updates_a_second_are_those_of_all_steps_and_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(Speed, "learning_rate", lambda _: 3.0)  # steps with two updates each
    few = ["--preset=sac", "--num_steps=60", f"--workdir={tmp_path}/run"]
    assert online.main(["online", *ONLINE, *few]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["updates_per_second"] == 3.0 * 2 * 2


@pytest.mark.slow
def test_a_profile_of_a_run_has_its_learning_steps(tmp_path):
    trace = tmp_path / "trace"
    few = ["--preset=sac", "--num_steps=60", f"--workdir={tmp_path}/run", f"--profile={trace}"]
    code, out, err = run(*ONLINE, *few)
    assert code == 0, out + err
    assert trace_events(trace).count("learning_step") > 0


def test_policy_loads_and_acts(finished):
    policy = qusac_jax.load_policy(finished)
    action = policy(np.zeros(3))
    assert action.shape == (1,)
    assert float(abs(action[0])) <= 1
    np.testing.assert_array_equal(policy(np.zeros(3)), action)
    assert policy(np.zeros((5, 3)), jax.random.key(0)).shape == (5, 1)
    with pytest.raises(ValueError, match=r"observation must have shape \[\.\.\., 3\], got \(4,\)"):
        policy(np.zeros(4))
    with pytest.raises(ValueError, match="observation must be finite"):
        policy([0.0, np.nan, 0.0])
    with pytest.raises(ValueError, match="observation must be finite in float32"):
        policy(np.array([1e300, 0.0, 0.0]))
    with pytest.raises(ValueError, match="observation must hold real numbers"):
        policy(np.array(["a", "b", "c"]))
    with pytest.raises(ValueError, match=r"key must be a key of JAX.*, got 0"):
        policy(np.zeros(3), 0)
    with pytest.raises(ValueError, match=r"seed_index must lie in \[0, 2\), got 2"):
        qusac_jax.load_policy(finished, seed_index=2)
    with pytest.raises(ValueError, match=r"seed_index must be an integer of at least 0, got 0.5"):
        qusac_jax.load_policy(finished, seed_index=0.5)


def test_policy_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no complete policy"):
        qusac_jax.load_policy(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "num_processes"),
    [(signal.SIGKILL, -9, 1), (signal.SIGTERM, 143, 2)],
)
def test_interrupted_and_continued_equals_undisturbed(
    finished, tmp_path, number, code, num_processes
):
    workdir = tmp_path / "interrupted"
    process = start(*ONLINE, f"--workdir={workdir}", f"--env_processes={num_processes}")
    programs.wait_until(lambda: programs.has_checkpoint(workdir), process)
    # As a job manager does, to those that step environments first: two in training, two else.
    children = children_of(process.pid)
    assert len(children) == (4 if num_processes == 2 else 0)
    for pid in [*children, process.pid]:
        os.kill(pid, number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert ("stopping and saving" in err) == (number == signal.SIGTERM)
    assert not (workdir / "summary.json").exists()
    returncode, out, err = run(*ONLINE, f"--workdir={workdir}")
    assert returncode == 0, out + err
    assert "continuing at step" in out
    assert (workdir / "metrics.csv").read_bytes() == (finished / "metrics.csv").read_bytes()
    summaries = [json.loads((p / "summary.json").read_text()) for p in (workdir, finished)]
    assert summaries[0]["compilations"] == summaries[1]["compilations"]
    assert summaries[0]["final_returns"] == summaries[1]["final_returns"]


@pytest.mark.slow
def test_interrupted_while_it_writes_results_is_finished_as_it_would_have_been(finished, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(finished, workdir)
    (workdir / "summary.json").unlink()
    shutil.rmtree(workdir / "policy")
    code, out, err = run(*ONLINE, f"--workdir={workdir}")
    assert code == 0, out + err
    assert (workdir / "summary.json").read_bytes() == (finished / "summary.json").read_bytes()
    qusac_jax.load_policy(workdir)


def test_ctrl_c_before_the_first_step_is_no_traceback(tmp_path):
    process = start(*ONLINE, f"--workdir={tmp_path}/run")
    assert "run directory" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped at step 0" in out
    assert out.endswith(" begins\n")
    assert "stopping and saving" in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "metrics.csv").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpu", "tpu"])
def test_a_device_that_is_not_there_is_named(tmp_path, kind):
    if jax.default_backend() == kind:
        pytest.skip(f"there is a {kind}")
    code, _, err = run(f"--workdir={tmp_path / 'run'}", f"--device={kind}")
    assert code == 2, err
    assert f"device '{kind}' is not there" in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_workdir_of_another_run_is_refused_and_untouched(finished, run_here):
    before = (finished / "config.json").read_bytes(), (finished / "metrics.csv").read_bytes()
    code, _, err = run_here(*ONLINE, f"--workdir={finished}", "--config.risk=-0.5")
    assert code == 2
    assert "config.risk: 1.0 there, -0.5 now" in err
    assert ((finished / "config.json").read_bytes(), (finished / "metrics.csv").read_bytes()) == (
        before
    )


RESULTS = ("metrics.csv", "summary.json", "config.json")


def without_checkpoints_and_summary(path):
    shutil.rmtree(path / "checkpoints")
    (path / "summary.json").unlink()


def as_of_seed_seven(path):
    """The checkpoints stay those of seeds 0 and 1."""
    change_config(path, seed=7)


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (lambda path: None, ["--num_steps=60"], "use --num_steps=80 or more"),
        (lambda path: shutil.rmtree(path / "checkpoints"), [], "no checkpoint to continue from"),
        (without_checkpoints_and_summary, [], "no checkpoint to continue from"),
        (as_of_seed_seven, ["--seed=7", "--num_steps=90"], "seed: 0 there, 7 now"),
    ],
)
def test_results_are_never_overwritten_by_fewer_or_none(
    finished, tmp_path, run_here, change, arguments, message
):
    workdir = tmp_path / "run"
    shutil.copytree(finished, workdir)
    change(workdir)
    names = [name for name in RESULTS if (workdir / name).exists()]
    before = [(workdir / name).read_bytes() for name in names]
    code, _, err = run_here(*ONLINE, f"--workdir={workdir}", *arguments)
    assert code == 2, err
    assert message in err
    assert [(workdir / name).read_bytes() for name in names] == before


def test_two_processes_do_not_write_to_one_directory(tmp_path):
    first = RunDirectory(tmp_path, {"env": "x"})
    with pytest.raises(ValueError, match="is in use by another process"):
        RunDirectory(tmp_path, {"env": "x"})
    first.close()
    RunDirectory(tmp_path, {"env": "x"}).close()


def test_what_computed_a_run_before_is_kept(tmp_path):
    for commit, done in (("a", 0), ("b", 100), ("b", 200), ("c", 300)):
        directory = RunDirectory(tmp_path, {"env": "x", "git_commit": commit})
        directory.accept(done)
        directory.close()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["git_commit"] == "c"
    assert [(e["until"], e["git_commit"]) for e in config["earlier"]] == [(100, "a"), (300, "b")]


def test_help_is_no_mistake(run_here):
    code, out, _ = run_here("--help")
    assert code == 0
    assert "--termination" in out
    said = " ".join(out.split())
    assert "gym:MODULE:ID and functional:MODULE:NAME import and so execute that module" in said
    headings = [line for line in out.splitlines() if re.match(r"\S.*:$", line)]
    assert headings == [
        "this program:",
        "where and how JAX computes:",
        "several processes:",
        "hyperparameters; the defaults shown are those of the preset 'qusac', online:",
        "absl.flags:",
    ]
    own = re.findall(r"^  --(?:\[no\])?(\w+):", out.partition("where and")[0], re.MULTILINE)
    assert own == sorted(own)
    assert {"env", "workdir", "num_steps", "verbosity"} <= set(own)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env=cartpole_swing"], "cartpole_swingup"),
        (["--method=uper_bound"], "did you mean 'upper_bound'"),
        (["--method=tests.own_functions:spred"], "Method 'spred' (did you mean 'spread'"),
        (["--env=pendulum", "--method=tests.own_functions:of_members"], "must return float32["),
        (["--preset=mpbo"], "did you mean 'mbpo'"),
        (["--termination=hoper"], "termination 'hoper' is unknown (did you mean 'hopper'"),
        (
            ["--termination=never", "--config.dynamics.learn_termination=true"],
            "termination is given twice",
        ),
        (
            ["--env=gym:Pendulum-v1", "--termination=hopper"],
            "termination 'hopper' is for Hopper-v4",
        ),
        (["--config.discount=1.0"], "discount must lie in [0, 1), got 1.0"),
        (["--num_seeds=0"], "num_seeds=0: 0 is not a positive integer"),
        (["--seed=2147483647", "--num_seeds=2"], "must be below 2**31, got 2147483648"),
        (["--env=gym:CartPole-v1"], "gym:CartPole-v1"),
        (["--config.rsik=1"], "--config.rsik is no hyperparameter (did you mean '--config.risk'"),
        (["--config.critic_hidden=(8,)", "--config.critic_hidden=(9,)"], "given twice"),
        (["--no_such_flag=1"], "no_such_flag"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(tmp_path, run_here, arguments, message):
    code, out, err = run_here(f"--workdir={tmp_path / 'run'}", *arguments)
    assert code == 2, out + err
    assert message in err
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_its_columns_when_a_version_that_logs_others_continues_it(tmp_path):
    directory = RunDirectory(tmp_path / "run", {"env": "x"})
    directory.log([{"step": 1, "seed": 0, "gone": 2.0}], {})
    directory.log([{"step": 2, "seed": 0, "new": 3.0}], {})
    directory.close()
    lines = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    assert lines == ["step,seed,gone", "1,0,2.0", "2,0,nan"]
