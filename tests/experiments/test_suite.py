"""Many runs from one command: what is run, what is left alone, what is shown."""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest
import submitit

from experiments import own_cores, published_curves
from experiments.run_directory import RunDirectory
from experiments.suite import command as suite
from experiments.suite import ladder, launching, planning, queue, report, unfinished_runs
from experiments.suite.planning import Combinations, PlannedRun, plan
from qusac_jax.qusac import presets
from tests import programs
from tests.programs import ROOT, has_checkpoint, wait_until
from tests.run_files import change_config, metrics, rows_for, write_run
from tests.tiny import ENV, ONLINE

pytestmark = pytest.mark.usefixtures("few_resamples")
# The run of the other tests, without what a suite says itself.
FLAGS = [flag for flag in ONLINE if not flag.startswith(("--env=", "--num_seeds="))]
SHORT = "gym_tests.short_env_Short-v0-sac"


def command(workdir, *arguments):
    return [f"--tasks={ENV}", "--methods=sac", f"--workdir={workdir}", *FLAGS, *arguments]


def start(workdir, *arguments):
    # A session of its own, so that a signal can be sent to all of it.
    options = {"stderr": subprocess.STDOUT, "start_new_session": True}
    return programs.start("suite", *command(workdir, *arguments), **options)


def processes_of(folder):
    """The processes, submitit's and the runs, whose command line has submitit's folder."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder) in path.read_text() and "submitit" in path.read_text():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return sorted(found)


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
def test_again_does_what_is_missing_and_report_draws_what_is_there(finished, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
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


@pytest.mark.slow
def test_a_preempted_job_saves_and_is_queued_again(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = tmp_path / "runs" / "run"
    launcher = launching.Launcher("local", tmp_path / "jobs", {})
    flags = [f"--env={ENV}", "--preset=sac", *FLAGS, "--num_steps=800", f"--workdir={run}"]
    usable = own_cores.usable()
    job = launcher.submit("run", flags, usable[-1:])
    assert own_cores.usable() == usable  # it is pinned, and not the suite
    folder = tmp_path / "jobs" / "run"
    deadline = time.monotonic() + 240
    while not has_checkpoint(run):
        assert not job.done(), job.stderr()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    task = next(pid for pid in processes_of(folder) if pid != int(job.job_id))
    assert os.sched_getaffinity(task) == {usable[-1]}
    os.kill(task, signal.SIGUSR2)
    while not job.done():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    out = job.stdout() or ""
    assert "stopped at step" in out
    assert "continuing at step" in out
    assert json.loads((run / "summary.json").read_text())["steps"] == 800


@pytest.mark.slow
def test_a_job_of_slurm_saves_and_asks_to_be_queued_again(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    run, script = tmp_path / "runs" / "run", tmp_path / "submitted.sh"
    queued = tmp_path / "queued_again"
    as_slurm(
        tmp_path / "bin",
        monkeypatch,
        # What follows its options, as a task of the job.
        srun='while [ "${1#-}" != "$1" ]; do case "$1" in *=*|-u|--unbuffered) shift;;'
        ' *) shift 2;; esac; done; exec "$@"',
        sbatch=f"cp $1 {script}; echo Submitted batch job 12",
        scontrol=f'echo "$@" >> {queued}',
    )
    flags = [f"--env={ENV}", "--preset=sac", *FLAGS, "--num_steps=800", f"--workdir={run}"]
    launching.Launcher("slurm", tmp_path / "jobs", {}).submit("run", flags, [])
    of_job = {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    for is_preempted in (True, False):
        log = (tmp_path / f"log{is_preempted}").open("w+")
        process = subprocess.Popen(
            ["bash", script],
            env=os.environ | of_job | {"SLURM_NODEID": "0", "SLURM_JOB_NUM_NODES": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if is_preempted:
            deadline = time.monotonic() + 240
            while not has_checkpoint(run):
                assert process.poll() is None, log.seek(0) or log.read()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            (task,) = processes_of(tmp_path / "jobs" / "run")
            os.kill(task, signal.SIGUSR2)  # from SLURM, to the tasks of the job
        process.wait(timeout=240)
        log.seek(0)
        out = log.read()
        assert ("stopped at step" in out) == is_preempted, out
        assert ("continuing at step" in out) == (not is_preempted), out
        assert queued.read_text() == "requeue 12\n"
    assert json.loads((run / "summary.json").read_text())["steps"] == 800


def as_slurm(bin_folder, monkeypatch, **scripts):
    """Stand-ins of SLURM's commands, found before any others."""
    bin_folder.mkdir()
    for name, script in scripts.items():
        path = bin_folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")


class FakeJob:
    """A job that ends after some looks at it."""

    job_id = "7"

    def __init__(self, looks, at_end):
        self.looks, self.at_end = looks, at_end

    def done(self):
        self.looks -= 1
        if self.looks == 0:
            self.at_end()
        return self.looks <= 0


class FakeLauncher:
    """Runs that are done, or not, as soon as they are looked at for the second time."""

    is_local = True

    def __init__(self, failing=(), at_submit=lambda: None, folder=pathlib.Path("none")):
        self.submitted, self.at_once, self.most = [], 0, 0
        self.folder = folder
        self.failing, self.at_submit = failing, at_submit

    def find(self, name):
        return None

    def logs(self, name):
        return self.folder / name

    def has_ended(self, name, job):
        return job.done()

    def stop(self, job):
        job.looks = 0

    def submit(self, name, arguments, cores):
        self.submitted.append((name, tuple(cores)))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.at_submit()

        def end():
            self.at_once -= 1
            if name not in self.failing:
                finish(pathlib.Path(arguments[0]))

        return FakeJob(2, end)


def finish(path, steps=10):
    path.mkdir(parents=True, exist_ok=True)
    (path / "summary.json").write_text(json.dumps({"steps": steps}))


def planned(tmp_path, count):
    paths = [tmp_path / f"run{i}" for i in range(count)]
    return [PlannedRun(path.name, path, (str(path),), 10) for path in paths]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(queue, "_POLL", 0.001)


@pytest.mark.usefixtures("quick")
def test_so_many_at_once_each_on_its_cores(tmp_path):
    runs = planned(tmp_path, 5)
    finish(runs[1].path)
    finish(runs[2].path, steps=9)  # one step is missing
    launcher = FakeLauncher(failing={"run0"})
    assert queue.work(runs, launcher, [[0], [1, 2]], lambda: None) is None
    assert [name for name, _ in launcher.submitted] == ["run0", "run2", "run3", "run4"]
    assert launcher.most == 2
    assert {cores for _, cores in launcher.submitted} == {(0,), (1, 2)}
    assert [run.is_done() for run in runs] == [False, True, True, True, True]


@pytest.mark.usefixtures("quick")
def test_a_run_that_fails_is_said_with_its_error_when_it_ends(tmp_path, capsys):
    (tmp_path / "jobs" / "run0").mkdir(parents=True)
    (tmp_path / "jobs" / "run0" / "1_0_log.err").write_text("error: no room\n")
    launcher = FakeLauncher(failing={"run0", "run1"}, folder=tmp_path / "jobs")
    queue.work(planned(tmp_path, 3), launcher, [[]], lambda: None)
    out = capsys.readouterr().out
    assert f"run0: error: no room (its logs: {tmp_path / 'jobs' / 'run0'})" in out
    assert f"run1: no error written (its logs: {tmp_path / 'jobs' / 'run1'})" in out
    assert "run2: done" in out
    assert "run2: no error" not in out


@pytest.mark.usefixtures("quick")
def test_on_a_terminal_runs_have_bars(tmp_path, capsys, monkeypatch):
    class Eager(queue.tqdm):  # which draws at once, not every tenth of a second
        def __init__(self, **settings):
            super().__init__(mininterval=0.0, **settings)

    monkeypatch.setattr(queue, "tqdm", Eager)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    runs = planned(tmp_path, 1)
    write_run(runs[0].path, "pendulum", "sac", rows_for([0], [7.0], steps=(0, 2, 4)))
    queue.work(runs, FakeLauncher(), [[]], lambda: None)
    said = capsys.readouterr()
    assert "run0" in said.err
    assert "4/10" in said.err
    assert "return 7.0" in said.err
    assert "step 4 of 10" not in said.out


@pytest.mark.usefixtures("quick")
def test_what_another_process_runs_is_waited_for_and_continued_if_it_dies(tmp_path):
    runs = planned(tmp_path, 2)
    directory = RunDirectory(runs[1].path, {})
    launcher = FakeLauncher(at_submit=directory.close)  # it dies when the first one is started
    assert queue.work(runs, launcher, [[], []], lambda: None) is None
    assert [name for name, _ in launcher.submitted] == ["run0", "run1"]
    assert all(run.is_done() for run in runs)


@pytest.mark.usefixtures("quick")
def test_a_signal_stops_what_runs_and_starts_nothing(tmp_path):
    runs, came = planned(tmp_path, 3), []
    launcher = FakeLauncher(at_submit=lambda: came.append(signal.SIGINT))
    number = queue.work(runs, launcher, [[]], lambda: came[0] if came else None)
    assert number == signal.SIGINT
    assert [name for name, _ in launcher.submitted] == ["run0"]


@pytest.mark.parametrize(
    ("cores", "count", "parts"),
    [
        ([0, 1, 2, 3, 4], 2, [[0, 1], [2, 3, 4]]),
        ([3, 5], 3, [[3], [5], [3]]),
        ([0, 1], 1, [[0, 1]]),
        ([], 2, [[], []]),
    ],
)
def test_cores_are_shared_evenly(cores, count, parts):
    assert launching.shares(cores, count) == parts


def test_plan_has_every_combination_the_first_seeds_first(tmp_path):
    wanted = Combinations(["gym:Pendulum-v1"], ["mbpo", "upper_bound"], ["4-5", "0-1"])
    runs = plan(wanted, 2, ["--size=small"], tmp_path)
    names = [run.name for run in runs]
    assert names == [
        "gym_Pendulum-v1-mbpo-s0-1",
        "gym_Pendulum-v1-upper_bound-s0-1",
        "gym_Pendulum-v1-mbpo-s4-5",
        "gym_Pendulum-v1-upper_bound-s4-5",
    ]
    assert runs[2].arguments == (
        "--env=gym:Pendulum-v1",
        "--preset=mbpo",
        "--num_seeds=2",
        "--size=small",
        "--seed=4",
        f"--workdir={tmp_path / names[2]}",
    )
    assert runs[1].arguments[1] == "--method=upper_bound"
    assert runs[0].num_steps == 500_000


def test_plan_takes_a_preset_with_another_method(tmp_path):
    wanted = Combinations(["pendulum"], ["paper:ensemble_mean"], ["0"])
    (planned,) = plan(wanted, 1, (), tmp_path)
    assert planned.name == "pendulum-paper+ensemble_mean-s0"
    assert planned.arguments[1:3] == ("--preset=paper", "--method=ensemble_mean")


def test_each_run_of_a_plan_has_a_directory_of_its_own(tmp_path, monkeypatch):
    wanted = Combinations(["pendulum"], ["explore:upper_bound", "explore_upper_bound"], ["0"])
    assert len({run.path for run in plan(wanted, 1, (), tmp_path)}) == 2
    monkeypatch.setattr(planning, "_checked", lambda arguments: (1, {"config": {}}))
    with pytest.raises(ValueError, match="two of them would have the directory 'a_b-sac'"):
        plan(Combinations(["a:b", "a_b"], ["sac"], ["0"]), 1, (), tmp_path)


def test_plan_takes_several_action_costs(tmp_path):
    wanted = Combinations(["pendulum"], ["sac"], ["0"], ["0.030", "0"])
    free, dear = plan(wanted, 1, ["--size=small"], tmp_path)
    assert (free.name, dear.name) == ("pendulum-cost0-sac-s0", "pendulum-cost0.03-sac-s0")
    assert "--action_cost=0.03" in dear.arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks=pendulum", "--methods=papr:mbpo"], "preset 'papr' is unknown"),
        (["--tasks=pendulum", "--methods=paper:mbpo"], "method 'mbpo' is unknown"),
        ([], "tasks is missing"),
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


def test_the_last_error_of_the_latest_job_is_found(tmp_path):
    assert launching.last_error(tmp_path / "none") == ""
    for name, text in (
        ("1", "error: the first\n"),
        ("2", "Traceback\nerror: not this\n  x\nValueError: but this\nsubmitit ERROR (...)\n"),
    ):
        (tmp_path / f"{name}_0_log.err").write_text(text)
        os.utime(tmp_path / f"{name}_0_log.err", (int(name), int(name)))
    assert launching.last_error(tmp_path) == "ValueError: but this"


def test_the_last_error_is_found_where_slurm_writes_one_log(tmp_path):
    (tmp_path / "1_0_log.out").write_text("step 100\nValueError: this\n")
    assert launching.last_error(tmp_path) == "ValueError: this"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "slurmstepd: error: Detected 1 oom_kill event\nsrun: error: x: task 0: Out Of Memory\n",
            1,
        ),
        ("Fatal Python error: Segmentation fault\n  File x\n", 0),
        ("ValueError: its own\nsrun: error: node1: task 0: Exited with exit code 1\n", 0),
        ("no error: of its own\n", None),
    ],
)
def test_what_killed_a_job_is_found_where_it_wrote_no_error(tmp_path, text, expected):
    (tmp_path / "1_0_log.err").write_text(text)
    line = "" if expected is None else text.splitlines()[expected]
    assert launching.last_error(tmp_path) == line


def test_jobs_of_a_cluster_ask_for_what_was_said_and_are_found_again(tmp_path, monkeypatch):
    bin_folder = tmp_path / "bin"
    as_slurm(
        bin_folder,
        monkeypatch,
        srun="",
        sbatch=f"cp $1 {tmp_path}/submitted.sh; echo Submitted batch job 12",
        sacct="printf 'JobID|State|NodeList\\n12|PENDING|None\\n'",
    )
    launcher = launching.Launcher(
        "slurm", tmp_path / "jobs", {"partition": "gpu", "gpus_per_node": 1, "time": 600}
    )
    assert launcher.find("run") is None
    job = launcher.submit("run", ["--env=pendulum"], [])
    assert job.job_id == "12"
    script = (tmp_path / "submitted.sh").read_text()
    for line in ("partition=gpu", "gpus-per-node=1", "time=600", "signal=USR2@600", "job-name=run"):
        assert f"#SBATCH --{line}\n" in script
    assert launcher.find("run").job_id == "12"

    def sacct_says(state):
        row = f"12|{state}|None\\n" * bool(state)  # it does not know all jobs
        (bin_folder / "sacct").write_text(f"#!/bin/sh\nprintf 'JobID|State|NodeList\\n{row}'\n")
        submitit.SlurmJob.watcher.clear()

    states = (("PENDING", True), ("PREEMPTED", True), ("", True), ("FAILED", False))
    for state, is_found in states:
        sacct_says(state)
        assert (launcher.find("run") is not None) == is_found, state
        assert launcher.has_ended("run", job) != is_found
    for path in (tmp_path / "jobs" / "run").iterdir():
        os.utime(path, (1, 1))
    # An old job that is preempted will not be queued again; an unknown one may be on a cluster that
    # keeps no accounts.
    for state, is_found, has_ended in (
        ("PENDING", True, False),
        ("PREEMPTED", False, True),
        ("", False, False),
    ):
        sacct_says(state)
        assert (launcher.find("run") is not None) == is_found, state
        assert launcher.has_ended("run", job) == has_ended, state
    (bin_folder / "sbatch").write_text("#!/bin/sh\necho sbatch: over the limit >&2; exit 1\n")
    with pytest.raises(ValueError, match=r"other was refused.*over the limit.*fewer --jobs"):
        launcher.submit("other", ["--env=pendulum"], [])
    with pytest.raises(ValueError, match="Unknown argument 'partitoin'"):
        launching.Launcher("slurm", tmp_path / "jobs", {"partitoin": "gpu"})
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ValueError, match="srun"):
        launching.Launcher("slurm", tmp_path / "jobs", {})


@pytest.mark.parametrize(
    ("device_file", "has_plugin", "passed_on", "platforms", "count"),
    [
        ("nvidia0", True, [], "", 1),
        ("nvidia0", True, ["--device=cpu"], "", 2),
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


def test_a_job_ignores_what_is_for_its_suite_alone():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    with launching._inherited([]):
        inside = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    assert inside >= {signal.SIGINT, signal.SIGHUP}  # Ctrl-C, and a terminal that is closed
    assert signal.SIGTERM not in inside
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_a_run_of_an_earlier_suite_keeps_its_cores_and_is_named_with_its_process(tmp_path, capsys):
    (run,) = planned(tmp_path, 1)
    cores = own_cores.usable()
    here, elsewhere = cores, [max(cores) + 1]
    assert queue._slot_of(run, [], [elsewhere, here]) == 0  # it is not running
    directory = RunDirectory(run.path, {})
    assert queue._slot_of(run, [], [elsewhere, here]) == 1
    taken = [queue._Running(run, None, 1)]
    assert queue._slot_of(run, taken, [elsewhere, here, here]) == 2
    queue._leave([queue._Running(run, None, 1)], FakeLauncher())
    assert f"still running: run0 (kill {os.getpid()} saves and ends it)" in capsys.readouterr().out
    directory.close()
    queue._leave([queue._Running(run, None, 1)], FakeLauncher())
    assert capsys.readouterr().out == ""


def test_a_damaged_run_ends_neither_the_suite_nor_its_report(tmp_path, capsys):
    runs = planned(tmp_path / "runs", 2)
    for run in runs:
        write_run(run.path, "pendulum", "sac", rows_for([0], [4.0], (0, 10)))
    (runs[0].path / "metrics.csv").write_text("step,eval_return\n1,x\n")
    assert queue._last_evaluation(runs[0])[0] == 0
    assert queue._last_evaluation(runs[1]) == (10, 4.0)
    (runs[0].path / "summary.json").write_text("")
    finish(runs[1].path)
    # What is no run, and what was deleted, is not waited for; what failed at its start is.
    (tmp_path / "runs" / ".ipynb_checkpoints").mkdir()
    for name in ("deleted", "failed", "queued"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        (tmp_path / "jobs" / name / "1_submitted.pkl").touch()
    (tmp_path / "jobs" / "deleted" / "1_0_result.pkl").touch()
    (tmp_path / "jobs" / "failed" / "1_0_log.err").write_text("error: no room\n")
    text, unfinished = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "| pendulum | sac | 1 | 10 |" in text
    assert [one.name for one in unfinished] == ["failed", "queued", "run0"]
    assert not runs[0].is_done()
    assert "- failed: error: no room\n" in text
    assert "summary.json cannot be read" in unfinished[2].reason
    assert "delete it, and the run goes on" in unfinished[2].reason


def test_report_by_hand(tmp_path, capsys):
    steps = tuple(range(0, 50_001, 2_500))
    for method, finals in (("ensemble_mean", [400.0, 600.0]), ("upper_bound", [100.0, 300.0])):
        for env in ("pendulum", "ball_in_cup"):
            name = f"{env}-{method}-s0"
            write_run(tmp_path / "runs" / name, env, method, rows_for([0, 1], finals, steps))
            change_config(tmp_path / "runs" / name, num_steps=50_000, action_cost=0.0)
            finish(tmp_path / "runs" / name, steps=50_000)
    finish(tmp_path / "runs" / "pendulum-upper_bound-s0", steps=20_000)
    text, unfinished = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    # A line from 0 to 400 in 20 steps: its last ten values have the mean 400 * 15.5 / 20 = 310, and
    # those to 600 have 465; the error is half their difference.
    pendulum = published_curves.curves("pendulum", 0.0)
    theirs = next(curve for curve in pendulum if curve.name == "ensemble_mean")
    assert theirs.at(50_000)[:2] == (theirs.mean[4], theirs.standard_error[4])
    assert theirs.at(50_000)[2:] == (111.9, 873.7)  # of ten seeds
    assert theirs.at(57_500)[0] == pytest.approx(0.25 * theirs.mean[4] + 0.75 * theirs.mean[5])
    assert round(theirs.mean[4]) == 605
    assert np.isnan(theirs.at(9_999)[0])
    assert theirs.at(250_000)[:2] == (theirs.mean[-1], theirs.standard_error[-1])
    assert np.isnan(theirs.at(250_001)[0])  # of which nothing was published
    row = next(line for line in text.splitlines() if line.startswith("| pendulum | ensemble_mean"))
    assert "| 2 | 50000 | 387.5 ± 77.5 | 387.5 [" in row
    assert row.endswith(
        f"| {theirs.mean[4]:.1f} ± {theirs.standard_error[4]:.1f} | 111.9 to 873.7 |"
    )
    assert "| upper_bound | 2 | 2 | 0.155 [0.0" in text
    assert [one.name for one in unfinished] == ["pendulum-upper_bound-s0"]
    assert (tmp_path / "learning_curves.png").stat().st_size > 10_000
    assert (tmp_path / "report.md").read_text() == text


def test_action_costs_make_a_ladder_beside_the_published_one(tmp_path):
    steps = tuple(range(0, 50_001, 2_500))
    finals = {0.0: [400.0, 600.0], 0.03: [100.0, 300.0], 0.05: [20.0, 20.0]}
    for cost, returns in finals.items():
        run = tmp_path / "runs" / f"pendulum-cost{cost}-paper_sac-s0"
        write_run(
            run, "pendulum", "ensemble_mean", rows_for([0, 1], returns, steps), preset="paper_sac"
        )
        change_config(run, action_cost=cost)
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert (tmp_path / "action_costs.png").stat().st_size > 10_000
    curves = report.run_reader.read_runs((tmp_path / "runs").iterdir(), smooth=10)
    found = ladder.ladders(curves, lambda curve: float(curve.y[-1]))
    rungs = found["pendulum"]["paper_sac"]
    # As above, the last ten values on a line from 0 have 15.5 / 20 of its end for their mean.
    np.testing.assert_allclose([rung.cost for rung in rungs], [0, 0.03, 0.05])
    np.testing.assert_allclose([rung.mean for rung in rungs], [387.5, 155, 15.5])
    np.testing.assert_allclose([rung.standard_error for rung in rungs], [77.5, 77.5, 0])
    theirs = ladder.published(found, {"pendulum": 50_000.0})["pendulum"]["sac"]
    assert [rung.cost for rung in theirs] == [0, 0.03]  # nothing is published with 0.05
    row = next(line for line in text.splitlines() if "action_cost=0.03" in line)
    (curve,) = published_curves.curves("pendulum", 0.03)
    least_to_most = f"{curve.least[4]:.1f} to {curve.most[4]:.1f}"
    mean = f"{theirs[1].mean:.1f} ± {theirs[1].standard_error:.1f}"
    assert row.endswith(f"| {mean} | {least_to_most} |")
    row = next(line for line in text.splitlines() if "action_cost=0.05" in line)
    assert row.endswith("| - | - |")


def test_rungs_are_of_one_setting(tmp_path):
    runs = []
    for seed, (cost, risk) in enumerate(((0.0, 1.0), (0.0, 0.5), (0.1, 1.0))):
        run = tmp_path / f"{seed}"
        write_run(run, "pendulum", "pombu", rows_for([seed], [100.0 * seed]))
        change_config(run, action_cost=cost, config={"risk": risk})
        runs.append(run)
    curves = report.run_reader.read_runs(runs)
    found = ladder.ladders(curves, lambda curve: float(curve.y[-1]))["pendulum"]
    assert {label: [(r.cost, r.mean) for r in rungs] for label, rungs in found.items()} == {
        "pombu risk=0.5": [(0.0, 100.0)],
        "pombu risk=1.0": [(0.0, 0.0), (0.1, 200.0)],
    }


def test_a_ladder_is_of_one_step_and_does_not_wait_for_runs_that_have_made_none(
    tmp_path, monkeypatch
):
    for cost, last in ((0.0, 20_000), (0.03, 100_000), (0.05, 0)):
        run = tmp_path / "runs" / f"pendulum-cost{cost}-sac-s0"
        rows = rows_for([0], [last / 100], tuple(range(0, last + 1, 1_000)) if last else (0, 1))
        write_run(run, "pendulum", "sac", rows if last else rows[:1])
        change_config(run, action_cost=cost)
    drawn = []
    draw = lambda ours, theirs, path, *, steps, y: drawn.append((ours, dict(steps)))
    monkeypatch.setattr(ladder, "draw", draw)
    report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    ((ladders, steps),) = drawn
    assert steps == {"pendulum": 20_000}
    # Both have step / 100, and so the mean of 110 to 200 at 20,000 steps.
    assert [(rung.cost, rung.mean) for rung in ladders["pendulum"]["sac"]] == [
        (0, 155),
        (0.03, 155),
    ]


def test_seeds_that_are_not_as_far_are_compared_where_all_have_been(tmp_path):
    for seed, last in enumerate((20_000, 100_000)):
        steps = tuple(range(0, last + 1, 1_000))
        run = tmp_path / "runs" / f"pendulum-sac-s{seed}"
        write_run(run, "pendulum", "sac", rows_for([seed], [last / 100], steps))
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    # Both have step / 100, and so the mean of 110 to 200 at 20,000 steps.
    assert "| pendulum | sac | 2 | 20000 | 155.0 ± 0.0 | 155.0 [155.0, 155.0] |" in text


def test_a_task_has_the_median_of_its_seeds(tmp_path):
    for seed, last in enumerate((100.0, 200.0, 900.0)):
        run = tmp_path / "runs" / f"pendulum-sac-s{seed}"
        write_run(run, "pendulum", "sac", rows_for([seed], [last], (0, 1_000)))
    write_run(tmp_path / "runs" / "alone", "acrobot", "sac", rows_for([0], [1.0], (0, 1_000)))
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    pendulum, alone = (
        next(line for line in text.splitlines() if line.startswith(f"| {task} |")).split(" | ")
        for task in ("pendulum", "acrobot")
    )
    header = next(line for line in text.splitlines() if line.startswith("| task |")).split(" | ")
    column = header.index("median over seeds")
    # Of two evaluations, the first 0, the mean.
    assert pendulum[column] == "100.0 [50.0, 450.0]"
    assert alone[column - 1 : column + 1] == ["-", "-"]
    assert len(pendulum) == len(alone) == len(header)


def test_methods_are_compared_over_tasks_where_all_have_been(tmp_path):
    for env in ("pendulum", "ball_in_cup"):
        for method in ("ensemble_mean", "upper_bound"):
            for seed in range(3):
                is_behind = (env, method, seed) == ("pendulum", "upper_bound", 2)
                steps = tuple(range(0, 20_001 if is_behind else 100_001, 1_000))
                rows = rows_for([seed], [steps[-1] / 100], steps)
                write_run(tmp_path / "runs" / f"{env}-{method}-s{seed}", env, method, rows)
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "have reached (ball_in_cup 100000, pendulum 20000):" in text
    over_tasks = text.partition("Over tasks")[2]
    found = [line.split("|")[4:6] for line in over_tasks.splitlines() if "| 2 | 3 |" in line]
    assert len(found) == 2
    assert found[0] == found[1]
    # A task on which one has made no step yet waits for it, and so does one of a method alone.
    rows = rows_for([3], [0.0], (0, 1))[:1]
    write_run(tmp_path / "runs" / "begun", "pendulum", "upper_bound", rows)
    alone = rows_for([0], [1.0], (0, 1_000))
    write_run(tmp_path / "runs" / "alone", "acrobot", "upper_bound", alone)
    begun, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "Over tasks" not in begun  # one is left


def test_the_published_sac_makes_as_many_updates_as_the_paper_s(tmp_path):
    for preset in ("sac", "paper_sac"):
        rows = rows_for([0], [500.0], (0, 50_000))
        run = tmp_path / "runs" / f"pendulum-{preset}-s0"
        write_run(run, "pendulum", "ensemble_mean", rows, preset=preset)
        change_config(run, config={"updates_per_step": 1 if preset == "sac" else 10})
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    last = {
        line.split(" | ")[1]: line.split(" | ")[-2:]
        for line in text.splitlines()
        if "±" in line or "- |" in line
    }
    assert last["sac"] == ["-", "- |"]
    assert "±" in last["paper_sac"][0]
    assert last["paper_sac"][1] == "0.0 to 843.9 |"


def test_by_default_all_methods_make_as_many_updates_and_most_have_published_curves():
    methods = suite.make_flags()["methods"].default
    config = lambda name: presets.get(name if name in presets.PRESETS else "qusac")
    assert {config(name).updates_per_step for name in methods} == {10}
    published = {curve.name for curve in published_curves.curves("pendulum", 0.0)}
    assert {name.removeprefix("paper_") for name in methods} - published == {"upper_bound"}


def test_published_means_lie_within_their_seeds():
    for env in ("pendulum", "ball_in_cup", "cartpole_swingup", "reacher_hard"):
        for curve in published_curves.curves(env, 0.0):
            assert (curve.least <= curve.mean + 0.05).all()  # means are rounded
            assert (curve.mean - 0.05 <= curve.most).all()
            # The error of a mean of ten is no more than a sixth of their range.
            assert (curve.standard_error <= (curve.most - curve.least) / 6 + 0.05).all()


def test_nothing_is_published_with_another_action_cost():
    assert published_curves.curves("pendulum", 0.05) == []
    assert published_curves.curves("gym:Pendulum-v1", 0.0) == []
    assert published_curves.curves("removed", 0.0) == []
    (sac,) = published_curves.curves("dmc:pendulum:swingup", 0.03)
    assert sac.name == "sac"


def test_seeds_that_share_no_steps_are_not_compared(tmp_path):
    steps = (0, 1000, 2000)
    first, later = [(0, 0, 5.0, 5.0, 0.0)], [(1000, 1, 5.0, 5.0, 0.0), (2000, 1, 5.0, 5.0, 0.0)]
    write_run(tmp_path / "runs" / "a", "pendulum", "upper_bound", first)
    write_run(tmp_path / "runs" / "b", "pendulum", "upper_bound", later)
    write_run(tmp_path / "runs" / "c", "pendulum", "pombu", rows_for([0, 1], [7.0, 9.0], steps))
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    assert "| pendulum | upper_bound | 2 | 0 | - | - | - | - |" in text
    assert "| pendulum | pombu | 2 | 2000 |" in text


def test_looking_for_what_was_published_executes_nothing(tmp_path, monkeypatch):
    trace = tmp_path / "trace"
    (tmp_path / "executed.py").write_text(f"open({str(trace)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    assert published_curves.curves("gym:executed:X-v0", 0.0) == []
    assert not trace.exists()


def test_fewer_steps_than_an_interrupted_run_has_saved_are_refused(tmp_path):
    combinations = Combinations(["pendulum"], ["sac"], ["0"])
    (one,) = plan(combinations, 1, ("--num_steps=20000",), tmp_path)
    saved = one.path / "checkpoints" / "15000"
    saved.mkdir(parents=True)
    (saved / "checksums.json").touch()
    (one,) = plan(combinations, 1, ("--num_steps=20000",), tmp_path)
    assert not one.is_done()
    with pytest.raises(ValueError, match="num_steps is 10000, but 15000 steps are done in"):
        plan(combinations, 1, ("--num_steps=10000",), tmp_path)


@pytest.mark.parametrize("steps", [None, [], "many", True])
def test_a_summary_whose_steps_are_no_number_is_named(tmp_path, steps):
    (tmp_path / "summary.json").write_text(json.dumps({"steps": steps}))
    with pytest.raises(ValueError, match=r"summary.json: steps is .*, which is no whole number"):
        planning.done_steps(tmp_path)
