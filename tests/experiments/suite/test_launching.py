"""Jobs on this machine and on a cluster: started, found again, saved and continued."""

import json
import os
import signal
import subprocess
import time

import pytest
import submitit

from experiments import online, own_cores
from experiments.suite import launching
from tests.experiments.suite.runs_and_jobs import FLAGS, as_slurm, processes_of
from tests.programs import ROOT, has_checkpoint
from tests.tiny import ENV


@pytest.mark.parametrize("devices", [None, "1"])
def test_a_local_job_sees_the_gpus_that_submitit_hides(monkeypatch, devices):
    seen = []

    def run(_):
        seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
        return 0

    monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(online, "main", run)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        launching.TrainingJob([], devices)()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert seen == [devices]


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


@pytest.mark.parametrize(("minutes", "seconds"), [(600, 600), (5, 30)])
def test_jobs_of_a_cluster_ask_for_what_was_said_and_are_found_again(
    tmp_path, monkeypatch, minutes, seconds
):
    bin_folder = tmp_path / "bin"
    as_slurm(
        bin_folder,
        monkeypatch,
        srun="",
        sbatch=f"cp $1 {tmp_path}/submitted.sh; echo Submitted batch job 12",
        sacct="printf 'JobID|State|NodeList\\n12|PENDING|None\\n'",
    )
    launcher = launching.Launcher(
        "slurm", tmp_path / "jobs", {"partition": "gpu", "gpus_per_node": 1, "time": minutes}
    )
    assert launcher.find("run") is None
    job = launcher.submit("run", ["--env=pendulum"], [])
    assert job.job_id == "12"
    script = (tmp_path / "submitted.sh").read_text()
    wanted = ("partition=gpu", "gpus-per-node=1", f"time={minutes}", "job-name=run")
    for line in (*wanted, f"signal=USR2@{seconds}"):
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


def test_a_job_ignores_what_is_for_its_suite_alone():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    with launching._inherited([]):
        inside = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    assert inside >= {signal.SIGINT, signal.SIGHUP}  # Ctrl-C, and a terminal that is closed
    assert signal.SIGTERM not in inside
    assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == before


def test_jobs_of_a_cluster_have_a_day_unless_it_is_said(tmp_path, monkeypatch):
    sbatch = f"cp $1 {tmp_path}/sent.sh; echo job 12"
    as_slurm(tmp_path / "bin", monkeypatch, srun="", sbatch=sbatch)
    launching.Launcher("slurm", tmp_path / "jobs", {}).submit("run", ["--env=pendulum"], [])
    lines = (tmp_path / "sent.sh").read_text().splitlines()
    assert "#SBATCH --time=1440" in lines
    assert "#SBATCH --signal=USR2@600" in lines
    launcher = launching.Launcher("slurm", tmp_path / "jobs", {"signal_delay_s": 5})
    launcher.submit("run", ["--env=pendulum"], [])
    assert "#SBATCH --signal=USR2@5" in (tmp_path / "sent.sh").read_text().splitlines()


def test_a_run_that_fails_makes_its_job_fail(monkeypatch):
    monkeypatch.setattr(online, "main", lambda _: 2)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as ended:
            launching.TrainingJob([])()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert ended.value.code == 2
