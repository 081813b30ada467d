"""The files of a run: read as tests compare them, changed, and written without a run."""

import csv
import errno
import json
import os

import jax
import numpy as np

HEADER = "step,seed,eval_return,eval_task_return,mean_q"


def metrics(workdir):
    """metrics.csv as one array, `metrics(workdir)["step"]` the column of that name."""
    return np.genfromtxt(workdir / "metrics.csv", delimiter=",", names=True)


def metrics_rows(workdir):
    """The rows of metrics.csv, each the texts by the names of their columns."""
    with (workdir / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def disk_is_full(*_):
    """In place of a function that writes: what the system raises then."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def change_config(workdir, **changes):
    """Puts the changes into config.json; returns the workdir."""
    path = workdir / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return workdir


def write_run(path, env, method, rows, preset="qusac", header=HEADER, tail=""):
    """Writes what the programs that compare runs read of one; returns its path."""
    path.mkdir(parents=True)
    config = {"env": env, "method": method, "preset": preset, "seed": 0, "num_seeds": 1}
    (path / "config.json").write_text(json.dumps(config))
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    (path / "metrics.csv").write_text("\n".join(lines) + "\n" + tail)
    return path


def rows_for(seeds, finals, steps=(0, 100, 200)):
    """Straight lines from 0 to the final return; 1 more without action cost."""
    return [
        (step, seed, final * step / steps[-1], final * step / steps[-1] + 1, 0.0)
        for step in steps
        for seed, final in zip(seeds, finals, strict=True)
    ]


def trace_events(folder):
    """The names of what happened in the only trace of a profile there is."""
    (path,) = folder.glob("plugins/profile/*/*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(path)).planes
    return [event.name for plane in planes for line in plane.lines for event in line.events]
