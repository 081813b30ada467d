"""Runs of the training programs as jobs of submitit: here, or on a SLURM cluster.

This module is imported by every job: it loads JAX only where a run begins.
"""

import importlib
import itertools
import os
import pathlib
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from experiments import own_cores

# Local jobs have no time limit, which submitit cannot say.
_NO_LIMIT = 10 * 365 * 24 * 60  # minutes
_SLURM_TIME = 24 * 60  # minutes, unless --slurm=time=... says otherwise
_MAX_REQUEUES = 1_000  # after time limits; submitit gives up after 3
_SUBMITTED = "_submitted.pkl"  # after what submitit calls a job
_SLURM_ALIVE = (
    "PENDING",
    "CONFIGURING",
    "READY",
    "RUNNING",
    "COMPLETING",
    "REQUEUED",
    "SUSPENDED",
)
# Of a job that is not known yet, or no more (UNKNOWN to submitit), and of one that is to be queued
# again or never will be. Which of the two, only time tells.
_SLURM_BETWEEN = ("UNKNOWN", "PREEMPTED")
_BETWEEN = 600.0  # seconds since the job was submitted or has written to its logs
_SAVING = 600  # seconds before the time limit: a fit or an evaluation under way ends first
_OWN_ERROR = re.compile(r"error: |[\w.]*(Error|Exception)\b")
# What a program that was killed cannot write itself.
_ERROR_ABOUT_IT = re.compile(r"(slurmstepd|srun): error: |Fatal Python error: ")
_ONLINE = "online"
LAUNCHERS = ("local", "slurm")


class TrainingJob:
    """A run of a training program, as submitit stores, calls and requeues it.

    A preempted job saves and is queued again, where it continues from what it has saved.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        visible_devices: str | None = None,
        program: str = _ONLINE,
    ):
        """What to call.

        Args:
            arguments: flags of the program.
            visible_devices: CUDA_VISIBLE_DEVICES of a local job.
            program: its name, `online` or `offline`.
        """
        self._arguments = list(arguments)
        self._visible_devices = visible_devices
        self._program = program

    def __call__(self) -> None:
        """Trains; raises `SystemExit` with the exit code of a run that did not end well."""
        import submitit

        if os.environ.get("SUBMITIT_EXECUTOR") == "local":
            # submitit hides all GPUs from a local job that does not say how many it needs.
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            if self._visible_devices is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = self._visible_devices
        number = getattr(signal, f"SIG{submitit.JobEnvironment.USR_SIG}")
        requeue: Any = signal.getsignal(number)
        nothing_begun = signal.getsignal(signal.SIGTERM)
        is_preempted = False

        def preempted(number: int, frame: FrameType | None) -> None:
            nonlocal is_preempted
            is_preempted = True
            if signal.getsignal(signal.SIGTERM) == nothing_begun:
                requeue(number, frame)
            signal.raise_signal(signal.SIGTERM)  # on which a run saves and ends

        signal.signal(number, preempted)
        program = importlib.import_module(f"experiments.{self._program}")
        code = program.main([self._program, *self._arguments])
        if is_preempted and code == 128 + signal.SIGTERM:
            requeue(number, None)
        if code:
            sys.exit(code)

    def checkpoint(self) -> Any:
        """What submitit queues after a preemption: the same once more."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


class Launcher:
    """Submits jobs and tells whether they are still there."""

    def __init__(self, kind: str, folder: pathlib.Path, parameters: Mapping[str, Any]):
        """Checks that jobs can be submitted.

        Args:
            kind: one of `LAUNCHERS`.
            folder: for submitit's files, a folder in it for each run.
            parameters: of SLURM jobs, as submitit's `SlurmExecutor` names them.

        Raises:
            ValueError: if submitit or SLURM is not there, or a parameter is none of SLURM's.
        """
        self.is_local = kind == "local"  # whether jobs end with the suite
        self._folder = folder
        self._parameters = {f"slurm_{name}": value for name, value in parameters.items()}
        if not self.is_local:
            minutes = self._parameters.setdefault("slurm_time", _SLURM_TIME)
            # Of a short limit a tenth.
            self._parameters.setdefault("slurm_signal_delay_s", min(_SAVING, 6 * minutes))
        elif parameters:
            raise ValueError(
                f"slurm: {', '.join(parameters)} given, but the launcher is local; use "
                "--launcher=slurm, or leave them out"
            )
        self._executor()

    def submit(
        self, name: str, arguments: Sequence[str], cores: Sequence[int], program: str = _ONLINE
    ) -> Any:
        """Starts or queues a run.

        Args:
            name: of the run.
            arguments: flags of the program.
            cores: that a local job is bound to; empty for any.
            program: its name, `online` or `offline`.

        Returns:
            submitit's job.

        Raises:
            ValueError: if it is refused.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        job = TrainingJob(arguments, os.environ.get("CUDA_VISIBLE_DEVICES"), program)
        try:
            with _inherited(cores if self.is_local else ()):
                return self._executor(name).submit(job)
        except (FailedJobError, FailedSubmissionError, TypeError) as error:
            raise ValueError(
                f"launcher: {name} was refused ({' '.join(str(error).split())}); the same command "
                "with other --slurm values, or with fewer --jobs, goes on"
            ) from error

    def find(self, name: str) -> Any:
        """The job of a run that an earlier suite has submitted and SLURM still knows, or None.

        Local jobs that outlive their suite are known by the lock of the run's directory.
        """
        import submitit

        latest = _latest_job(self._folder / name)
        if self.is_local or latest is None:
            return None
        folder = self._folder / name
        job = submitit.SlurmJob(folder, latest)
        state = job.state.split()[0]
        is_between = state in _SLURM_BETWEEN and is_open(folder) and _is_recent(folder)
        return job if is_between or state in _SLURM_ALIVE else None

    def has_ended(self, name: str, job: Any) -> bool:
        """Whether a run's job is over: with a result, or preempted and not queued again."""
        if self.is_local or job.done():
            return bool(job.done())
        is_preempted = job.state.split()[0] == "PREEMPTED"
        return is_preempted and not _is_recent(self._folder / name)

    def logs(self, name: str) -> pathlib.Path:
        """The folder with what a run's jobs have written."""
        return self._folder / name

    def stop(self, job: Any) -> None:
        """Asks a local job to save and end; what runs on a cluster goes on."""
        if self.is_local and not job.done():
            os.kill(int(job.job_id), signal.SIGTERM)  # submitit's process, which passes it on

    def _executor(self, name: str = "") -> Any:
        try:
            import submitit
        except ImportError as error:
            raise ValueError(
                f"a suite needs submitit, which cannot be imported ({error}); install the extra "
                "with: pip install -e '.[suite]'"
            ) from error
        folder = self._folder / name
        try:
            executor = submitit.AutoExecutor(
                folder=folder,
                cluster="local" if self.is_local else "slurm",
                slurm_max_num_timeout=_MAX_REQUEUES,
            )
            executor.update_parameters(name=name or None, timeout_min=_NO_LIMIT, **self._parameters)
        except (RuntimeError, NameError, ValueError) as error:
            raise ValueError(f"launcher: {str(error).splitlines()[0]}") from error
        return executor


def shares(cores: Sequence[int], count: int) -> list[list[int]]:
    """The cores in `count` parts, as equal as can be.

    With fewer cores than parts, parts share cores; with none, all parts are empty.
    """
    if not cores:
        return [[] for _ in range(count)]
    if count >= len(cores):
        return [[cores[i % len(cores)]] for i in range(count)]
    bounds = [len(cores) * i // count for i in range(count + 1)]
    return [list(cores[low:high]) for low, high in itertools.pairwise(bounds)]


def is_open(folder: pathlib.Path) -> bool:
    """Whether the latest job of a run has left no result: it is queued or runs, or was killed."""
    latest = _latest_job(folder)
    return latest is not None and not any(folder.glob(f"{latest}_*_result.pkl"))


def _is_recent(folder: pathlib.Path) -> bool:
    """Whether a job of a run was submitted, or wrote something, a short time ago."""
    # Not of all files: submitit has some for a moment only.
    paths = [*folder.glob(f"*{_SUBMITTED}"), *folder.glob("*_log.*")]
    latest = max((path.stat().st_mtime for path in paths), default=0.0)
    return time.time() - latest < _BETWEEN


def _latest_job(folder: pathlib.Path) -> str | None:
    """What submitit calls the job that was submitted last, or None."""
    submitted = folder.glob(f"*{_SUBMITTED}")
    latest = max(submitted, key=lambda path: path.stat().st_mtime, default=None)
    return None if latest is None else latest.name.removesuffix(_SUBMITTED)


def last_error(folder: pathlib.Path) -> str:
    """The last error that the latest job of a run has written, else what SLURM wrote about it.

    Empty if there is none, as after a kill on this machine.
    """
    # With stderr_to_stdout SLURM's jobs have no other log.
    logs = list(folder.glob("*_log.err")) or list(folder.glob("*_log.out"))
    logs.sort(key=lambda path: path.stat().st_mtime)
    if not logs:
        return ""
    lines = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines()
    own, about = (
        [line.strip() for line in lines if pattern.match(line)]
        for pattern in (_OWN_ERROR, _ERROR_ABOUT_IT)
    )
    return (own or about or [""])[-1]


@contextmanager
def _inherited(cores: Sequence[int]) -> Iterator[None]:
    """Within it, a process that is started inherits these cores, and blocks SIGINT and SIGHUP.

    submitit's local executor has no setting for either, and kills its job a second after a Ctrl-C.
    """
    before = own_cores.usable()
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        if cores:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
