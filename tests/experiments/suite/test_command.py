"""Many runs from one command: what is run, what is left alone, what is shown."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess

import numpy as np
import pytest

from experiments import published_curves
from experiments.suite import command as suite
from experiments.suite import launching, unfinished_runs
from experiments.suite.planning import PlannedRun
from experiments.suite.programs import ONLINE
from qusac_jax.qusac import presets
from tests import programs
from tests.experiments.suite.runs_and_jobs import FLAGS, as_slurm, finish, processes_of
from tests.programs import ROOT, has_checkpoint, wait_until
from tests.run_files import change_config, metrics, rows_for, write_run
from tests.tiny import ENV

pytestmark = pytest.mark.usefixtures("few_resamples")
SHORT = "gym_tests.short_env_Short-v0-sac"


def command(workdir, *arguments):
    return [f"--tasks={ENV}", "--methods=sac", f"--workdir={workdir}", *FLAGS, *arguments]


def start(workdir, *arguments):
    # A session of its own, so that a signal can be sent to all of it.
    options = {"stderr": subprocess.STDOUT, "start_new_session": True}
    return programs.start("suite", *command(workdir, *arguments), **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A suite one of whose two runs cannot begin."""
    workdir = tmp_path_factory.mktemp("suite")
    junk = workdir / "runs" / f"{SHORT}-s1"
    junk.mkdir(parents=True)
    (junk / "junk").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert suite.main(["suite", *command(workdir, "--seeds=0-1", "--jobs=2")]) == 1
    return workdir


@pytest.mark.slow
def test_a_run_that_fails_stops_no_other_and_is_named(finished):
    report = (finished / "report.md").read_text()
    assert f"| {ENV} | sac | 1 | 80 |" in report
    assert f"- {SHORT}-s1, 80 steps wanted: error: workdir" in report
    assert "is not empty and holds no config.json" in report
    assert f"{SHORT}-s0," not in report
    assert (finished / "learning_curves.png").stat().st_size > 10_000
    config = json.loads((finished / "runs" / f"{SHORT}-s0" / "config.json").read_text())
    assert (config["preset"], config["seed"], config["num_steps"]) == ("sac", 0, 80)


@pytest.mark.slow
def test_a_finished_run_without_all_its_rows_and_one_not_begun_are_named(finished, tmp_path):
    name = f"{SHORT}-s0"
    run = shutil.copytree(finished / "runs" / name, tmp_path / "runs" / name)
    planned = [PlannedRun(one, run.parent / one, (), 80) for one in (name, "other")]
    find = functools.partial(unfinished_runs.find, run.parent, tmp_path / "jobs", planned)
    assert [(one.name, one.reason) for one in find()] == [("other", "not begun")]
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    (run / "metrics.csv").write_text("".join(lines[:-1]))
    assert {one.name for one in find()} == {name, "other"}
    assert "ends at step 60 of seed 0, and summary.json says 80" in find()[0].reason


@pytest.mark.slow
def test_again_does_what_is_missing_and_report_draws_what_is_there(
    finished, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(ROOT)
    finished = shutil.copytree(finished, tmp_path / "suite")
    (finished / "runs" / f"{SHORT}-s1" / "junk").unlink()
    done = finished / "runs" / f"{SHORT}-s0" / "summary.json"
    before = done.stat().st_mtime_ns
    (finished / "learning_curves.png").unlink()
    assert suite.main(["suite", f"--workdir={finished}", "--report"]) == 1
    assert (finished / "learning_curves.png").exists()
    assert suite.main(["suite", *command(finished, "--seeds=0-1")]) == 0
    out = capsys.readouterr().out
    assert "2 runs, 1 of them done" in out
    assert f"{SHORT}-s1: done" in out
    assert "Not finished" not in (finished / "report.md").read_text()
    assert done.stat().st_mtime_ns == before
    # All is done: nothing is started, also with another number of cores.
    assert suite.main(["suite", *command(finished, "--seeds=0-1", "--jobs=1")]) == 0
    assert len(list((finished / "jobs" / f"{SHORT}-s1").glob("*_submitted.pkl"))) == 2


@pytest.mark.slow
def test_a_run_that_outlives_its_killed_suite_is_followed_and_not_run_twice(tmp_path):
    run, jobs = tmp_path / "runs" / f"{SHORT}-s0", tmp_path / "jobs" / f"{SHORT}-s0"
    more = ("--seeds=0", "--num_steps=2000")
    process = start(tmp_path, *more)
    wait_until(lambda: has_checkpoint(run), process)
    process.kill()
    process.wait()
    assert processes_of(jobs)
    process = start(tmp_path, *more)
    out = process.communicate(timeout=240)[0]
    assert process.returncode == 0, out
    assert f"{SHORT}-s0: is running already" in out
    assert f"{SHORT}-s0: started" not in out
    assert len(list(jobs.glob("*_submitted.pkl"))) == 1
    steps = metrics(run)["step"]
    np.testing.assert_array_equal(steps, np.arange(0, 2001, 20))


@pytest.mark.slow
def test_a_killed_job_is_reported_and_continued(tmp_path):
    run, jobs = tmp_path / "runs" / f"{SHORT}-s0", tmp_path / "jobs" / f"{SHORT}-s0"
    more = ("--seeds=0", "--num_steps=800")
    process = start(tmp_path, *more)
    wait_until(lambda: has_checkpoint(run), process)
    for pid in processes_of(jobs):  # submitit's, which may end when the run does, and the run's
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 1, out
    assert "no error written; stopped, killed or still running" in out
    process = start(tmp_path, *more)
    out = process.communicate(timeout=240)[0]
    assert process.returncode == 0, out
    assert "continuing at step" in max(jobs.glob("*_log.out"), key=os.path.getmtime).read_text()


@pytest.mark.slow
def test_ctrl_c_saves_what_runs(tmp_path):
    run, jobs = tmp_path / "runs" / f"{SHORT}-s0", tmp_path / "jobs" / f"{SHORT}-s0"
    process = start(tmp_path, "--seeds=0", "--num_steps=100000")
    wait_until(lambda: has_checkpoint(run), process)
    os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all of them
    out = process.communicate(timeout=120)[0]
    assert process.returncode == 130, out
    assert not processes_of(jobs)
    log = next(jobs.glob("*_log.out")).read_text()
    step = int(log.partition("stopped at step ")[2].partition(";")[0])
    assert step in [int(path.name) for path in (run / "checkpoints").iterdir()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks=pendulum", "--methods=papr:mbpo"], "preset 'papr' is unknown"),
        (["--tasks=pendulum", "--methods=paper:mbpo"], "method 'mbpo' is unknown"),
        ([], "tasks is missing"),
        (["--tasks=pendulum", "--datasets=a.hdf5"], "the runs of a suite are online or offline"),
        (["--datasets=a.hdf5", "--action_costs=0"], "the cost that they were recorded with"),
        (["--datasets=a.hdf5"], "dataset: 'a.hdf5'"),
        (["--datasets=a.hdf5", "--dataset=b.hdf5"], "use --datasets"),
        (["--datasets=a.hdf5", "--dynamics=run"], "runs of a suite share them by themselves"),
        (["--datasets=a.hdf5", "--num_step=1"], "and that of experiments.offline list"),
        (["--datasets=a.hdf5", "--num_steps=10"], "num_steps must be a multiple of config.fit_eve"),
        (["--tasks=pendulun"], "there is no environment 'pendulun' (did you mean 'pendulum'"),
        (["--tasks=paper,pendulum"], "tasks: 'pendulum' is given twice"),
        (["--tasks=pendulum", "--methods=mpbo"], "did you mean 'mbpo'"),
        (["--tasks=pendulum", "--methods=qusac,upper_bound"], "'qusac' and 'upper_bound' are the"),
        (["--tasks=pendulum", "--methods=sac,mbpo,mbpo:ensemble_mean"], "'mbpo' and 'mbpo:ensem"),
        (["--tasks=pendulum", "--seeds=4-0"], "seeds must be numbers and ranges"),
        (["--tasks=pendulum", "--seeds=0-2", "--num_seeds=2"], "consecutive seeds each"),
        (["--tasks=pendulum", "--seeds=2147483648"], "seed=2147483648"),
        (["--tasks=pendulum", "--size=smal"], "size=smal"),
        (["--tasks=pendulum", "--num_steps=0"], "num_steps=0"),
        (["--tasks=pendulum", "--metods=sac"], "--metods is no flag (did you mean '--methods' or"),
        (["--tasks=pendulum", "--jbos=1"], "'--jobs'?); the suite's --help and that of exper"),
        (["--tasks=pendulum", "--config.rsik=1"], "did you mean '--config.risk'"),
        (["--tasks=pendulum", "--config.discount=1"], "discount must lie in [0, 1)"),
        (["--tasks=pendulum", "--action_cost=-1"], "action_cost"),
        (["--tasks=pendulum", "--action_costs=0,-1"], "action_cost"),
        (["--tasks=pendulum", "--action_costs=0,x"], "action_costs must be numbers such as 0,0.01"),
        (["--tasks=pendulum", "--action_costs=0,0.0"], "action_costs: 0.0 is given twice"),
        (["--tasks=pendulum", "--action_costs=0,-0"], "action_costs: 0.0 is given twice"),
        (["--tasks=pendulum", "--action_costs=0", "--action_cost=1"], "use --action_costs alone"),
        (["--tasks=pendulum", "--seed=1"], "use --seeds"),
        (["--tasks=pendulum", "--env=acrobot"], "use --tasks"),
        (["--tasks=pendulum", "stray"], "arguments ['stray'] are not flags"),
        (["--tasks=pendulum", "--jobs=0"], "jobs=0"),
        (["--tasks=pendulum", "--slurm=partition"], "slurm must be NAME=VALUE"),
        (["--tasks=pendulum", "--slurm=partition=gpu"], "use --launcher=slurm"),
        (["--tasks=pendulum", "--slurm=time=true"], "minutes such as time=720, got True"),
        (["--tasks=pendulum", "--workdir=runs/job %A"], "has %A, which stands for a job's number"),
        (["--tasks=pendulum", "--slurm=time=12:00:00"], "minutes such as time=720, got '12:00:00'"),
        (["--report"], "holds no suite"),
        (["--report", "--num_steps=3"], "leave out --num_steps=3"),
        (["--report", "--methods=sac"], "leave out --methods"),
    ],
)
def test_mistakes_are_named_before_any_run_begins(tmp_path, capsys, arguments, message):
    workdir = tmp_path / "suite"
    assert suite.main(["suite", f"--workdir={workdir}", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (workdir / "runs").exists()


@pytest.mark.slow
def test_fewer_steps_than_are_done_are_refused_before_any_run_begins(finished, capsys):
    assert suite.main(["suite", *command(finished, "--seeds=0", "--num_steps=40")]) == 2
    assert "num_steps is 40, but 80 steps are done in" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_with_other_settings_are_refused_before_any_begins(finished, capsys):
    assert suite.main(["suite", *command(finished, "--seeds=0,5", "--config.risk=0.5")]) == 2
    assert "config.risk: 0.0 there, 0.5 now" in capsys.readouterr().err
    assert not (finished / "runs" / f"{SHORT}-s5").exists()


@pytest.mark.parametrize(
    ("device_file", "has_plugin", "passed_on", "platforms", "count"),
    [
        ("nvidia0", True, [], "", 1),
        ("nvidia0", True, ["--device=cpu"], "", 2),
        ("nvidia0", True, ["--device", "cpu"], "", 2),
        ("nvidia0", True, [], "cpu", 2),
        ("nvidia0", False, [], "", 2),
        ("nvidiactl", True, [], "", 2),  # the driver alone
    ],
)
def test_runs_that_would_share_a_gpu_come_one_after_the_other(
    tmp_path, monkeypatch, device_file, has_plugin, passed_on, platforms, count
):
    (tmp_path / device_file).touch()
    monkeypatch.setattr(suite, "_DEVICES", tmp_path)
    monkeypatch.setattr(suite.util, "find_spec", lambda name: has_plugin or None)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert suite._jobs_here(passed_on) == count


def test_what_slurm_is_asked_for_is_read_as_it_is_meant(tmp_path, monkeypatch):
    texts = ["account=00123", "time=0600", "nodes=2"]
    with pytest.raises(ValueError, match="got '0600'"):
        suite._slurm_parameters(texts)
    texts = ["account=00123", "time=600", "setup=module load cuda", "setup=date", "srun_args=-v"]
    given = suite._slurm_parameters(texts)
    assert given["account"] == "00123"
    assert given["time"] == 600
    flags = suite._slurm_parameters(["use_srun=False", "exclusive=true"])
    assert flags == {"use_srun": False, "exclusive": True}
    sbatch = f"cp $1 {tmp_path}/sent.sh; echo job 12"
    as_slurm(tmp_path / "bin", monkeypatch, srun="", sbatch=sbatch)
    launching.Launcher("slurm", tmp_path / "jobs", given).submit("run", ["--env=pendulum"], [])
    lines = (tmp_path / "sent.sh").read_text().splitlines()
    assert "module load cuda" in lines
    assert "date" in lines
    assert "#SBATCH --account=00123" in lines
    assert any(line.startswith("srun ") and " -v " in line for line in lines)
    launcher = launching.Launcher("slurm", tmp_path / "jobs", {"ntasks_per_node": "x"})
    with pytest.raises(ValueError, match="run was refused"):
        launcher.submit("run", ["--env=pendulum"], [])


def test_by_default_all_methods_make_as_many_updates_and_most_have_published_curves():
    methods = ONLINE.methods
    config = lambda name: presets.get(name if name in presets.PRESETS else "qusac")
    assert {config(name).updates_per_step for name in methods} == {10}
    published = {curve.name for curve in published_curves.curves("pendulum", 0.0)}
    assert {name.removeprefix("paper_") for name in methods} - published == {"upper_bound"}


def test_a_report_that_cannot_be_written_ends_a_suite_before_its_runs(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(suite.queue, "work", lambda *_: pytest.fail("it has begun"))
    (tmp_path / "report.md").symlink_to("/proc/report.md")
    arguments = ["--tasks=pendulum", "--methods=sac", "--seeds=0", f"--workdir={tmp_path}"]
    assert suite.main(["suite", *arguments]) == 2
    assert "report.md' cannot be written" in capsys.readouterr().err


def test_a_report_of_unfinished_runs_has_code_1(tmp_path, capsys):
    run = write_run(tmp_path / "runs" / "a", "pendulum", "sac", rows_for([0], [4.0], (0, 10)))
    change_config(run, num_steps=10)
    assert suite.main(["suite", f"--workdir={tmp_path}", "--report"]) == 1
    finish(run)
    assert suite.main(["suite", f"--workdir={tmp_path}", "--report"]) == 0
