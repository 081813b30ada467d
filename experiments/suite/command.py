"""Runs a benchmark: `python -m experiments.suite --tasks=paper --methods=upper_bound,mbpo`.

Every combination of task, action cost, method and seeds is a run of `experiments.online` in a
process of its own, on its share of the cores or as a job of a SLURM cluster. With --datasets in
place of --tasks, runs are of `experiments.offline`. All flags that are not listed here are passed
on to the runs: --size (default paper), --num_steps (default 500000, offline 1000000),
--action_cost, --config.FIELD and the others of `python -m experiments.online --help`.
Starting again does what is missing. At the end there are figures and a table; --report makes them
of what is there.
"""

import os
import pathlib
import re
import sys
from collections.abc import Sequence
from importlib import util
from typing import Any

import jax
from absl import flags

from experiments import cli, files, interrupts, own_cores, path_flag
from experiments.suite import launching, planning, programs, queue, report, unfinished_runs
from experiments.suite.programs import Program
from qusac_jax.environments import PAPER_TASKS
from qusac_jax.qusac.presets import PRESETS
from qusac_jax.qusac.uncertainty import METHODS

_MANY = 1_000  # jobs on a cluster, which has a limit of its own
_LOCAL_JOBS = 2
_DEVICES = pathlib.Path("/dev")
_OF_SEVERAL = ("setup", "teardown", "srun_args")  # lines or arguments, of which there can be more

# What says which runs there are, and how they are run.
_OF_RUNS = (
    "tasks",
    "datasets",
    "methods",
    "seeds",
    "action_costs",
    "num_seeds",
    "jobs",
    "launcher",
    "slurm",
)


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list(
        "tasks",
        [],
        f"environments; paper for the paper's six: {', '.join(PAPER_TASKS)}; these or datasets are "
        "required",
        **define,
    )
    flags.DEFINE_list(
        "datasets",
        [],
        "Minari ids, D4RL HDF5 files or folders of Minari datasets, of offline runs",
        **define,
    )
    flags.DEFINE_list(
        "methods",
        None,
        f"methods ({', '.join(METHODS)}, or MODULE:NAME of your own), presets "
        f"({', '.join(PRESETS)}), or PRESET:METHOD; default {','.join(programs.ONLINE.methods)}, "
        f"offline {','.join(programs.OFFLINE.methods)}",
        **define,
    )
    flags.DEFINE_list("seeds", ["0-4"], "numbers and ranges", **define)
    flags.DEFINE_list("action_costs", [], "of each task, instead of one --action_cost", **define)
    flags.DEFINE_integer("num_seeds", 1, "seeds trained together in one process", 1, **define)
    flags.DEFINE_integer(
        "jobs",
        None,
        f"runs at once; default {_LOCAL_JOBS} here, 1 where they would share a GPU, all on a "
        "cluster",
        1,
        **define,
    )
    path_flag.define(values, "workdir", "runs/suite", "folder of the runs and results")
    flags.DEFINE_enum(
        "launcher", "local", list(launching.LAUNCHERS), "run here, or as jobs of SLURM", **define
    )
    flags.DEFINE_multi_string(
        "slurm",
        [],
        "NAME=VALUE for sbatch, as submitit's SlurmExecutor names them: partition, time (minutes), "
        "gpus_per_node, cpus_per_task, mem, account, ...; can be given several times, setup too",
        **define,
    )
    flags.DEFINE_boolean("report", False, "run nothing, draw what is there", **define)
    return values


def run(options: Any, passed_on: Sequence[str]) -> int | None:
    """Runs what is missing and reports; returns the exit code."""
    jax.config.update("jax_platforms", "cpu")  # the accelerator is for the runs
    workdir = pathlib.Path(options.workdir).absolute()
    if found := re.search("%[jAaNnt]", str(workdir)):
        raise ValueError(
            f"workdir {str(workdir)!r} has {found.group()}, which stands for a job's number in "
            "submitit's file names; choose another"
        )
    runs, jobs = workdir / "runs", workdir / "jobs"
    if options.report:
        of_runs = [f"--{name}" for name in _OF_RUNS if options[name].present]
        if unread := [*of_runs, *passed_on]:
            raise ValueError(f"--report runs nothing; leave out {', '.join(unread)}")
        if not runs.is_dir():
            raise ValueError(f"workdir {options.workdir!r} holds no suite; name the one of a suite")
        return _report(runs, jobs, workdir, [])
    program = _program(options)
    parameters = _slurm_parameters(options.slurm)
    combinations = planning.Combinations(
        options[program.tasks].value,
        program.methods if options.methods is None else options.methods,
        options.seeds,
        options.action_costs,
    )
    planned = planning.plan(
        combinations, options.num_seeds, passed_on, runs, list(options), program
    )
    programs.forget()
    for name in ("learning_curves.png", "action_costs.png", "report.md"):
        files.check_writable(workdir / name)
    launcher = launching.Launcher(options.launcher, jobs, parameters)
    count = options.jobs or (_jobs_here(passed_on) if launcher.is_local else _MANY)
    slots = launching.shares(own_cores.usable(), min(count, len(planned)))
    of_local = "the runs that it has started save and end"
    what = of_local if launcher.is_local else "what is queued or runs goes on"
    with interrupts.stop_signals(f"leaving: {what}") as stopped:
        number = queue.work(planned, launcher, slots, stopped)
    code = _report(runs, jobs, workdir, planned)
    return code if number is None else 128 + number


def _program(options: Any) -> Program:
    """What the runs are of."""
    if not (options.tasks or options.datasets):
        raise ValueError(
            "tasks is missing: pass --tasks=paper, or names such as pendulum, or --datasets"
        )
    if not options.datasets:
        return programs.ONLINE
    if options.tasks:
        raise ValueError(
            "tasks and datasets: the runs of a suite are online or offline; leave one out"
        )
    if options.action_costs:
        raise ValueError(
            "action_costs: the rewards of a dataset have the cost that they were recorded with; "
            "leave it out"
        )
    return programs.OFFLINE


def _jobs_here(passed_on: Sequence[str]) -> int:
    """How many runs this machine does at once: JAX takes most of a GPU's memory for one."""
    is_asked = "--device cpu" in " ".join(passed_on).replace("=", " ")
    is_on_cpu = is_asked or os.environ.get("JAX_PLATFORMS") == "cpu"
    has_plugin = any(util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))
    has_gpu = has_plugin and any(_DEVICES.glob("nvidia[0-9]*"))
    return 1 if has_gpu and not is_on_cpu else _LOCAL_JOBS


def _report(
    runs: pathlib.Path,
    jobs: pathlib.Path,
    workdir: pathlib.Path,
    planned: Sequence[planning.PlannedRun],
) -> int:
    """Writes and prints the report; 1 if a run is missing, or if there is none."""
    text, unfinished = report.write(runs, jobs, workdir, planned)
    figures = " and its figures are" if (workdir / "learning_curves.png").is_file() else " is"
    print(f"\n{text}\nreport.md{figures} in {workdir}")
    names = {run.name for run in planned}
    is_missing = any(one.name in names or not names for one in unfinished)
    return int(is_missing or not any(map(unfinished_runs.is_run, unfinished_runs.folders(runs))))


def _slurm_parameters(texts: Sequence[str]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"slurm must be NAME=VALUE such as partition=gpu, got {text!r}")
        if name in _OF_SEVERAL:
            parameters.setdefault(name, []).append(value)
        elif value.lower() in ("true", "false"):
            parameters[name] = value.lower() == "true"
        else:  # an account may be 00123
            parameters[name] = int(value) if re.fullmatch("0|[1-9][0-9]*", value) else value
    if type(time := parameters.get("time", 1)) is not int:  # nor true
        raise ValueError(f"slurm: time is a number of minutes such as time=720, got {time!r}")
    return parameters


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and runs the suite; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__, pass_on=True)
