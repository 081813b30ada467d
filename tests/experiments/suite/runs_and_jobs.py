"""Runs that a suite plans, done or not, and the jobs that they are."""

import json
import os
import pathlib
import stat

from experiments.suite.planning import PlannedRun
from tests.tiny import ONLINE

# The run of the other tests, without what a suite says itself.
FLAGS = [flag for flag in ONLINE if not flag.startswith(("--env=", "--num_seeds="))]


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


def as_slurm(bin_folder, monkeypatch, **scripts):
    """Stand-ins of SLURM's commands, found before any others."""
    bin_folder.mkdir()
    for name, script in scripts.items():
        path = bin_folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")


def finish(path, steps=10):
    """Leaves behind what a run does that has made all its steps."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "summary.json").write_text(json.dumps({"steps": steps}))


def planned(tmp_path, count):
    """Runs of ten steps each, none of which has begun."""
    paths = [tmp_path / f"run{i}" for i in range(count)]
    return [PlannedRun(path.name, path, (str(path),), 10) for path in paths]
