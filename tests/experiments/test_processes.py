"""Runs of several processes: the files of a run of one, and what happens when one is lost."""

import json
import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from experiments import offline, online
from experiments.processes import Processes
from experiments.training import program
from tests import programs, run_files, tiny
from tests.programs import ROOT, has_checkpoint, wait_until

SEEDS = ["--num_seeds=4"]
ONLINE = [*tiny.ONLINE, *SEEDS, "--checkpoint_every=100", "--eval_every=50"]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def answers(port):
    with socket.socket() as client:
        return not client.connect_ex(("127.0.0.1", port))


def start(program, flags, *, count=2):
    """The processes of a run, each with two devices."""
    flags = [*flags, "--distributed", f"--coordinator=127.0.0.1:{free_port()}"]
    flags += [f"--num_processes={count}"]
    return [
        programs.start(program, *flags, f"--process_id={i}", num_devices=2) for i in range(count)
    ]


@pytest.mark.parametrize("address", ["10.0.0.1", "localhost:abc", "localhost:99999", ":1234"])
def test_a_coordinator_has_a_host_and_a_port(tmp_path, capsys, address):
    flags = [f"--coordinator={address}", "--num_processes=1", "--process_id=0"]
    workdir = tmp_path / "run"
    assert online.main(["online", "--distributed", *flags, f"--workdir={workdir}"]) == 2
    assert "coordinator must be HOST:PORT, such as" in capsys.readouterr().err
    assert not workdir.exists()


def ended(processes):
    """Exit codes, and what each printed to stdout and stderr."""
    outputs = [process.communicate(timeout=300) for process in processes]
    return [process.returncode for process in processes], outputs


def check_same(path, other):
    """Two runs have the same results, up to rounding."""
    one, two = map(run_files.metrics, (path, other))
    assert one.dtype.names is not None
    for column in one.dtype.names:
        np.testing.assert_allclose(one[column], two[column], rtol=1e-3, atol=1e-4, err_msg=column)
    summaries = [json.loads((run / "summary.json").read_text()) for run in (path, other)]
    for name in ("seeds", "steps", "rewarded_steps", "termination_disagreements"):
        assert summaries[0].get(name) == summaries[1].get(name)
    assert summaries[0]["seeds"] == list(range(4))


@pytest.mark.slow
def test_a_killed_run_goes_on_alone(tmp_path):
    # Statistics of D make networks this small amplify rounding until the runs are two.
    raw = ["--config.dynamics.normalize_inputs=no", "--config.dynamics.normalize_targets=False"]
    flags = [*ONLINE, *raw, "--num_steps=400"]
    assert online.main(["online", *flags, f"--workdir={tmp_path}/alone"]) == 0
    path = tmp_path / "run"
    processes = start("online", [*flags, f"--workdir={path}"])
    wait_until(lambda: has_checkpoint(path, 100), *processes)
    processes[1].kill()
    codes, outputs = ended(processes)
    assert codes == [2, -signal.SIGKILL], outputs
    assert "another process of this run has ended" in outputs[0][1]
    assert online.main(["online", *flags, f"--workdir={path}"]) == 0
    check_same(tmp_path / "alone", path)


@pytest.mark.slow
def test_without_the_first_process_the_others_end_and_the_run_can_be_continued(tmp_path):
    path = tmp_path / "run"
    flags = [*ONLINE, "--preset=sac", "--num_steps=400", f"--workdir={path}"]
    processes = start("online", flags)
    wait_until(lambda: has_checkpoint(path, 100), *processes)
    processes[0].kill()
    codes, _ = ended(processes)
    assert codes[0] == -signal.SIGKILL
    assert codes[1] != 0  # JAX ends it: the first process is where all of them meet
    assert online.main(["online", *flags]) == 0
    assert json.loads((path / "summary.json").read_text())["steps"] == 400


@pytest.mark.slow
def test_a_stopped_run_goes_on_together(tmp_path):
    flags = [flag for flag in ONLINE if not flag.startswith("--termination")]
    flags += ["--env=functional:tests.pendulum:Pendulum", "--preset=sac", "--num_steps=300"]
    path = tmp_path / "run"
    assert online.main(["online", *flags, "--num_steps=50", f"--workdir={path}"]) == 0
    processes = start("online", [*flags, f"--workdir={path}"])
    wait_until((path / "checkpoints" / "100").exists, *processes)
    processes[1].send_signal(signal.SIGTERM)
    codes, outputs = ended(processes)
    assert codes == [143, 143], outputs
    assert "stopped at step 200" in outputs[0][0]
    assert "step" not in outputs[1][0]
    codes, outputs = ended(start("online", [*flags, f"--workdir={path}"]))
    assert codes == [0, 0], outputs
    assert online.main(["online", *flags, f"--workdir={tmp_path}/alone"]) == 0
    check_same(tmp_path / "alone", path)


@pytest.mark.slow
def test_tasks_of_slurm_find_each_other(tmp_path):
    flags = [flag for flag in ONLINE if not flag.startswith("--termination")]
    flags += ["--env=functional:tests.pendulum:Pendulum", "--preset=sac", "--num_steps=100"]
    # JAX derives the port from the job's number.
    job = next(number for number in range(1, 4096) if not answers(61440 + number))
    slurm = {"SLURM_JOB_ID": f"{job}", "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    together = [*flags, "--distributed", f"--workdir={tmp_path}/tasks"]
    of_task = lambda i: slurm | {"SLURM_PROCID": f"{i}", "SLURM_LOCALID": f"{i}"}
    processes = [programs.start("online", *together, env=os.environ | of_task(i)) for i in range(2)]
    codes, outputs = ended(processes)
    assert codes == [0, 0], outputs
    assert online.main(["online", *flags, f"--workdir={tmp_path}/alone"]) == 0
    check_same(tmp_path / "alone", tmp_path / "tasks")


@pytest.mark.slow
def test_environments_of_the_host_go_on_together(tmp_path):
    # Without a simulator: parts of their state are empty, and so in no file.
    flags = [flag for flag in ONLINE if not flag.startswith(("--env=", "--termination"))]
    flags += ["--env=gym:Pendulum-v1", "--preset=sac", "--num_steps=200"]
    path = tmp_path / "run"
    for num_steps in (100, 200):
        both = start("online", [*flags, f"--num_steps={num_steps}", f"--workdir={path}"])
        codes, outputs = ended(both)
        assert codes == [0, 0], outputs
    assert online.main(["online", *flags, f"--workdir={tmp_path}/alone"]) == 0
    check_same(tmp_path / "alone", path)


@pytest.mark.slow
@pytest.mark.usefixtures("dataset")
def test_offline_runs_and_what_follows_online(tmp_path):
    flags = [*tiny.OFFLINE, *SEEDS]
    codes, outputs = ended(start("offline", [*flags, f"--workdir={tmp_path}/two"]))
    assert codes == [0, 0], outputs
    assert offline.main(["offline", *flags, f"--workdir={tmp_path}/alone"]) == 0
    check_same(tmp_path / "alone", tmp_path / "two")
    # ... and go on online, on other processes than those that wrote the checkpoint
    flags = [*tiny.CONTINUED, *SEEDS, f"--init_from={tmp_path}/alone"]
    codes, outputs = ended(start("online", [*flags, f"--workdir={tmp_path}/online"]))
    assert codes == [0, 0], outputs
    flags[-1] = f"--init_from={tmp_path}/two"
    assert online.main(["online", *flags, f"--workdir={tmp_path}/online_alone"]) == 0
    check_same(tmp_path / "online_alone", tmp_path / "online")


@pytest.mark.slow
def test_an_error_of_one_ends_all(tmp_path):
    (tmp_path / "file").touch()
    codes, outputs = ended(start("online", [*ONLINE, f"--workdir={tmp_path}/file"]))
    assert codes == [2, 2], outputs
    assert "is a file; choose a directory" in outputs[0][1]
    assert "process 0 ended: workdir" in outputs[1][1]


LATE = """
import sys, types
from experiments import distributed, processes
options = types.SimpleNamespace(
    distributed=True,
    coordinator=sys.argv[1],
    num_processes=2,
    process_id=int(sys.argv[2]),
    num_seeds=2,
)
distributed.connect(options)
everyone = processes.Processes()
with everyone.together():
    everyone.gather(0)
    if everyone.is_first:
        raise ValueError("no space left")
"""


@pytest.mark.slow
def test_an_error_after_the_last_meeting_ends_all():
    address = f"127.0.0.1:{free_port()}"
    arguments = [[sys.executable, "-c", LATE, address, str(i)] for i in range(2)]
    both = [
        subprocess.Popen(each, cwd=ROOT, stderr=subprocess.PIPE, text=True) for each in arguments
    ]
    errors = [each.communicate(timeout=120)[1] for each in both]
    assert "ValueError: no space left" in errors[0]
    assert "process 0 ended: no space left" in errors[1]


WAITING = """
import sys
from experiments import distributed, interrupts, online
interrupts.leave_at_once()  # as with -m
distributed._WAIT = int(sys.argv[1])
sys.exit(online.main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "number", "code", "message"),
    [
        (300, signal.SIGTERM, 143, "terminated\n"),
        (300, signal.SIGINT, 130, "interrupted\n"),
        (2, None, 2, "error: distributed: the processes did not find each other (waited for 2"),
    ],
)
def test_who_waits_for_the_others_can_be_stopped(tmp_path, seconds, number, code, message):
    port = free_port()
    flags = [f"--coordinator=127.0.0.1:{port}", "--num_processes=2", "--process_id=0"]
    flags = [*ONLINE, f"--workdir={tmp_path}/run", "--distributed", *flags]
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(seconds), *flags],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if number is not None:
            wait_until(lambda: answers(port), process, seconds=120)  # where others would find it
            process.send_signal(number)
        err = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == code, err
    assert err.startswith(message)
    assert err.count("\n") == 1  # and nothing of JAX
    assert not (tmp_path / "run").exists()


BETWEEN_WAITS = """
import signal, threading, time
import jax
from experiments import distributed, interrupts
def find(**_):
    time.sleep(0.5)  # until the main thread waits, which a signal to this one does not end
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    time.sleep(60)
interrupts.leave_at_once()
jax.distributed.initialize = find
distributed._find_others({})
"""


def test_a_signal_that_ends_no_wait_is_answered_after_it():
    command = [sys.executable, "-c", BETWEEN_WAITS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=40)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_processes_that_were_started_otherwise_are_named():
    everyone = Processes()
    everyone.gather = lambda value: [value, {**value, "num_steps": 60}]
    program.check_agreement(everyone, {"resume": "latest"})
    with pytest.raises(ValueError, match=r"num_steps must .*, got 60 for process 1 and 40 for"):
        program.check_agreement(everyone, {"num_steps": 40, "resume": "latest"})


def test_shares():
    both = [Processes(), Processes()]
    for index, process in enumerate(both):
        process.count, process.index = 2, index
    assert [process.share(range(6)) for process in both] == [range(3), range(3, 6)]
    with pytest.raises(ValueError, match="multiple of the 2 processes, got 3; use 2, 4, 6"):
        both[0].share(range(3))
    counts = [len(both[0].devices(seeds, range(4))) for seeds in (1, 2, 3, 5, 6, 8)]
    assert counts == [1, 2, 3, 1, 3, 4]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--distributed"], "did not find each other"),
        # ... without waiting for anybody at that address
        (
            ["--distributed", "--coordinator=127.0.0.1:9", "--num_processes=3", "--process_id=1"],
            "multiple of the 3 processes, got 4; use 3, 6, 9",
        ),
        (["--num_processes=2"], "add --distributed"),
        (["--distributed", "--init_from=x"], "did not find each other"),
    ],
)
def test_mistakes_are_refused(flags, message, capsys):
    assert online.main(["online", *ONLINE, *flags]) == 2
    assert message in capsys.readouterr().err
