"""Which runs of a suite have not made all their steps, and why."""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from experiments import files, run_reader
from experiments.suite import launching
from experiments.suite.planning import PlannedRun, done_steps

_PARTS = ("config.json", "metrics.csv", "checkpoints")  # of a run that was begun


class Unfinished(NamedTuple):
    """A run that has not made all its steps."""

    name: str
    num_steps: int | None  # it should make, if that can be known
    reason: str


def find(runs: pathlib.Path, jobs: pathlib.Path, planned: Sequence[PlannedRun]) -> list[Unfinished]:
    """The runs that have not made all their steps, by name, and why."""
    wanted = {run.name: run.num_steps for run in planned}
    found = []
    for name in sorted({*wanted, *(path.name for path in [*folders(runs), *folders(jobs)])}):
        config = runs / name / "config.json"
        error = launching.last_error(jobs / name)
        has_config, was_begun = config.is_file(), is_run(runs / name)
        is_known = name in wanted or was_begun or error
        if not is_known and not launching.is_open(jobs / name):
            continue  # no run, or one that was deleted
        steps = wanted.get(name)
        try:
            if was_begun and not has_config:
                raise ValueError(f"{config} is missing; put it back, or delete what is beside it")
            if steps is None and has_config:
                steps = files.read_count(config, "num_steps", "leave this run out")
            if steps is not None and done_steps(runs / name) >= steps:
                error = run_reader.what_is_missing(runs / name)
                if not error:
                    continue
        except ValueError as problem:
            error = f"{problem}"
        if not error and not (runs / name).exists() and not (jobs / name).exists():
            error = "not begun"
        reason = error or (
            "no error written; stopped, killed or still running: the suite's command goes on with "
            f"it ({jobs / name})"
        )
        found.append(Unfinished(name, steps, reason))
    return found


def is_run(path: pathlib.Path) -> bool:
    """Whether a folder is that of a run, or of what is left of one."""
    return any((path / part).exists() for part in _PARTS)


def folders(path: pathlib.Path) -> list[pathlib.Path]:
    """Those inside a folder, in order; none if it is not there."""
    return sorted(p for p in path.iterdir() if p.is_dir()) if path.is_dir() else []
