"""Works off the runs of a suite: so many at once, each on its cores, with a line of progress."""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from experiments import files, run_lock
from experiments.suite.launching import Launcher, last_error
from experiments.suite.planning import PlannedRun

_POLL = 1.0  # seconds between looks at local jobs
_POLL_CLUSTER = 15.0
_LINES = 10  # of a run, where no bar can be drawn


class _Running(NamedTuple):
    """A run that is on its way."""

    run: PlannedRun
    job: Any  # submitit's, or None for a run that another suite has started
    slot: int  # of the cores


def work(
    planned: Sequence[PlannedRun],
    launcher: Launcher,
    slots: Sequence[Sequence[int]],
    stopped: Callable[[], int | None],
) -> int | None:
    """Runs what is not done, until all has ended or a signal comes.

    A run that fails is not tried again; that it is not done can be seen in its directory. What an
    earlier suite has left running is waited for.

    Args:
        planned: all runs.
        launcher: of their jobs.
        slots: as many runs at once as there are, each with the cores that it may use.
        stopped: returns the number of a signal that came, or None.

    Returns:
        The signal's number, or None.
    """
    waiting = [run for run in planned if not run.is_done()]
    progress = _Progress(len(planned), len(planned) - len(waiting))
    running: list[_Running] = []
    for run in list(waiting):
        job = launcher.find(run.name)
        if job is not None or run_lock.is_in_use(run.path):
            waiting.remove(run)
            slot = _slot_of(run, running, slots) if job is None else _free_slot(running, len(slots))
            running.append(_Running(run, job, slot))
            progress.begin(run, "is running already")
    poll = _POLL if launcher.is_local else _POLL_CLUSTER
    while (waiting or running) and stopped() is None:
        for one in [one for one in running if not _is_alive(one, launcher)]:
            running.remove(one)
            if one.job is None and not one.run.is_done():
                waiting.insert(0, one.run)  # its suite is gone, so nobody else will continue it
            progress.end(one.run, launcher.logs(one.run.name))
        while waiting and len(running) < len(slots) and stopped() is None:
            run, slot = waiting.pop(0), _free_slot(running, len(slots))
            try:
                job = launcher.submit(run.name, run.arguments_now(), slots[slot], run.program)
            except ValueError:
                progress.close()
                _leave(running, launcher)
                raise
            running.append(_Running(run, job, slot))
            progress.begin(run, "started" if launcher.is_local else f"queued as {job.job_id}")
        for one in running:
            progress.show(one.run)
        until = time.monotonic() + (poll if running else 0.0)
        while time.monotonic() < until and stopped() is None:
            time.sleep(min(poll, _POLL))
    number = stopped()
    if number is not None:
        _leave(running, launcher)
    progress.close()
    return number


def _is_alive(one: _Running, launcher: Launcher) -> bool:
    # The lock is looked at only where no process of ours may be about to take it. A run whose
    # submitit process was killed still holds it.
    if one.job is not None and not launcher.has_ended(one.run.name, one.job):
        return True
    return run_lock.is_in_use(one.run.path)


def _free_slot(running: Sequence[_Running], count: int) -> int:
    """The one with the fewest runs."""
    taken = [one.slot for one in running]
    return min(range(count), key=taken.count)


def _slot_of(run: PlannedRun, running: Sequence[_Running], slots: Sequence[Sequence[int]]) -> int:
    """One with the cores of a run that another suite has started, else any; the freest of these."""
    cores: set[int] = set()
    with contextlib.suppress(OSError, AttributeError):  # it has ended; no such call here
        if (process := run_lock.user(run.path)) is not None:
            cores = os.sched_getaffinity(process)
    taken = [one.slot for one in running]
    same = [number for number, slot in enumerate(slots) if slot and set(slot) == cores]
    return min(same or range(len(slots)), key=taken.count)


def _leave(running: Sequence[_Running], launcher: Launcher) -> None:
    """Lets local jobs of this suite save and end; others go on."""
    own = [one for one in running if one.job is not None and launcher.is_local]
    while alive := [one for one in own if not one.job.done()]:
        for one in alive:
            launcher.stop(one.job)  # again and again: at its start a job does not listen
        time.sleep(_POLL)
    left = [_name_and_process(one) for one in running if _is_alive(one, launcher)]
    if left:
        print(f"still running: {', '.join(left)}; the same command follows them again", flush=True)


def _name_and_process(one: _Running) -> str:
    # As in `_is_alive`, the lock of a job of ours is not looked at.
    process = run_lock.user(one.run.path) if one.job is None else None
    return one.run.name + ("" if process is None else f" (kill {process} saves and ends it)")


class _Progress:
    """A bar per run on a terminal, else a line now and then."""

    def __init__(self, total: int, done: int):
        """Says how much there is to do."""
        self._total, self._ended = total, done
        self._bars: dict[str, tqdm] = {}
        print(f"{total} runs, {done} of them done", flush=True)

    def begin(self, run: PlannedRun, how: str) -> None:
        self._write(f"{run.name}: {how}")
        self._bars[run.name] = tqdm(
            desc=run.name,
            total=run.num_steps,
            unit="step",
            disable=not sys.stderr.isatty(),
            leave=False,
            dynamic_ncols=True,
        )

    def show(self, run: PlannedRun) -> None:
        bar = self._bars[run.name]
        step, value = _last_evaluation(run)
        before = getattr(bar, "n", 0)
        if bar.disable and step * _LINES // run.num_steps > before * _LINES // run.num_steps:
            self._write(f"{run.name}: step {step} of {run.num_steps}, return {value:.1f}")
        if bar.disable:
            bar.n = step
        elif step > before:
            bar.set_postfix_str(f"return {value:.1f}", refresh=False)
            bar.update(step - before)

    def end(self, run: PlannedRun, logs: pathlib.Path) -> None:
        self._bars.pop(run.name).close()
        self._ended += run.is_done()
        step, value = _last_evaluation(run)
        what = "done" if run.is_done() else f"ended at step {step} of {run.num_steps}"
        self._write(f"{run.name}: {what}, return {value:.1f} ({self._ended} of {self._total} done)")
        if not run.is_done():
            self._write(f"{run.name}: {last_error(logs) or 'no error written'} (its logs: {logs})")

    def close(self) -> None:
        for bar in self._bars.values():
            bar.close()

    def _write(self, line: str) -> None:
        tqdm.write(line)
        sys.stdout.flush()


def _last_evaluation(run: PlannedRun) -> tuple[int, float]:
    """Its step and the mean return over seeds."""
    try:
        columns = files.read_columns(run.path / "metrics.csv", ("step", "eval_return"))
    except ValueError:  # the run itself says what is wrong, and mends what it can
        return 0, float("nan")
    steps = columns["step"][np.isfinite(columns["step"])]
    if not len(steps):
        return 0, float("nan")
    step = steps[-1]
    return int(step), float(np.mean(columns["eval_return"][columns["step"] == step]))
