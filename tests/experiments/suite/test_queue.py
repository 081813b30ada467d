"""What a suite starts and when, and what it says meanwhile."""

import os
import pathlib
import signal
import sys

import pytest

from experiments import own_cores
from experiments.run_directory import RunDirectory
from experiments.suite import queue
from tests.experiments.suite.runs_and_jobs import finish, planned
from tests.run_files import rows_for, write_run


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

    def submit(self, name, arguments, cores, program):
        self.submitted.append((name, tuple(cores)))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.at_submit()

        def end():
            self.at_once -= 1
            if name not in self.failing:
                finish(pathlib.Path(arguments[0]))

        return FakeJob(2, end)


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


@pytest.mark.usefixtures("quick")
def test_without_a_terminal_runs_have_lines_now_and_then(tmp_path, capsys):
    runs = planned(tmp_path, 3)
    finish(runs[2].path)
    write_run(runs[0].path, "pendulum", "sac", rows_for([0, 1], [7.0, 9.0], steps=(0, 2, 4)))
    queue.work(runs, FakeLauncher(failing={"run1"}), [[]], lambda: None)
    out = capsys.readouterr().out
    assert "3 runs, 1 of them done" in out
    assert out.count("run0: step 4 of 10, return 8.0\n") == 1
    assert "run0: done, return 8.0 (2 of 3 done)" in out
    assert "run1: ended at step 0 of 10, return nan (2 of 3 done)" in out


@pytest.mark.usefixtures("quick")
def test_what_runs_is_stopped_when_another_run_is_refused(tmp_path):
    jobs = []

    class Refusing(FakeLauncher):
        def submit(self, *given):
            if jobs:
                raise ValueError("launcher: run1 was refused")
            jobs.append(super().submit(*given))
            jobs[0].looks = 10**9  # does not end by itself
            return jobs[0]

    with pytest.raises(ValueError, match="run1 was refused"):
        queue.work(planned(tmp_path, 2), Refusing(), [[], []], lambda: None)
    assert jobs[0].looks <= 0
