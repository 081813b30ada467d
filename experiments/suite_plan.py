"""Which runs a suite is made of, and whether each of them can begin.

The runs are ordinary ones of `experiments.online`, a directory each.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments import cli, files, online, program, run_directory
from qusac_jax import _fields, environments
from qusac_jax.qusac.config import METHODS
from qusac_jax.qusac.presets import PRESETS

_PAPER = "paper"  # a value of --tasks
# Flags of a run that the suite says itself, and which of its own flags to use in their place.
_OWN = {
    "env": "--tasks",
    "method": "--methods",
    "preset": "--methods",
    "seed": "--seeds",
    "workdir": "the suite's own --workdir",
    "init_from": "experiments.online, a run at a time",
    "memory": "experiments.online, a run at a time",
}


class PlannedRun(NamedTuple):
    """One run of a suite."""

    name: str  # TASK-METHOD-sSEED, of its directory and in all that is printed
    path: pathlib.Path  # its directory
    arguments: tuple[str, ...]  # of `experiments.online`
    num_steps: int

    def is_done(self) -> bool:
        """Whether it has made all its steps and written its results."""
        return done_steps(self.path) >= self.num_steps


def done_steps(path: pathlib.Path) -> int:
    """Steps of a run that has written its results; 0 for one that has not."""
    summary = path / "summary.json"
    return int(files.read_json(summary).get("steps", 0)) if summary.is_file() else 0


def plan(
    tasks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[str],
    num_seeds: int,
    passed_on: Sequence[str],
    folder: pathlib.Path,
) -> list[PlannedRun]:
    """Every combination of task, method and seeds.

    All tasks and methods with the first seeds come before any with the next, so that there is
    something to compare early.

    Args:
        tasks: names of environments, or `paper` for the paper's six.
        methods: names of methods and presets, or PRESET:METHOD.
        seeds: numbers and ranges such as `0-4`.
        num_seeds: trained together in one run.
        passed_on: further flags of all runs.
        folder: of the runs' directories.

    Raises:
        ValueError: for whatever would end one of the runs at its start.
    """
    tasks = _without_repeats("tasks", _all_tasks(tasks))
    groups = sorted(_groups(_without_repeats("seeds", _all_seeds(seeds)), num_seeds))
    algorithms = _algorithms(_without_repeats("methods", methods))
    _check_own(passed_on)
    checked = {}
    for task in tasks:
        for method, flags in algorithms.items():
            given = (f"--env={task}", *flags, f"--num_seeds={num_seeds}", *passed_on)
            # With the largest seed, which may be too large.
            checked[task, method] = given, *_checked((*given, f"--seed={groups[-1]}"))
    runs = []
    for first in groups:
        seed = f"{first}" if num_seeds == 1 else f"{first}-{first + num_seeds - 1}"
        for (task, method), (given, num_steps, values) in checked.items():
            name = f"{_as_file_name(task)}-{_as_file_name(method)}-s{seed}"
            path = folder / name
            run_directory.previous_config(path, values | {"seed": first})
            arguments = (*given, f"--seed={first}", f"--workdir={path}")
            runs.append(PlannedRun(name, path, arguments, num_steps))
    return runs


def _all_tasks(tasks: Sequence[str]) -> list[str]:
    return [name for t in tasks for name in (environments.PAPER_TASKS if t == _PAPER else [t])]


def _all_seeds(texts: Sequence[str]) -> list[int]:
    seeds: list[int] = []
    for text in texts:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ValueError(f"seeds must be numbers and ranges such as 0-4,7, got {text!r}")
        seeds += range(first, last + 1)
    return seeds


def _without_repeats(name: str, values: Sequence[Any]) -> list[Any]:
    if not values:
        raise ValueError(f"{name} is empty; name at least one")
    repeated = sorted({value for value in values if list(values).count(value) > 1})
    if repeated:
        raise ValueError(f"{name}: {repeated[0]!r} is given twice; leave one out")
    return list(values)


def _groups(seeds: Sequence[int], num_seeds: int) -> list[int]:
    """The first seed of each run."""
    firsts = list(seeds[::num_seeds])
    if [seed for first in firsts for seed in range(first, first + num_seeds)] != list(seeds):
        raise ValueError(
            f"num_seeds is {num_seeds}, but {list(seeds)} are not runs of {num_seeds} consecutive "
            "seeds each; choose other seeds, or leave num_seeds out"
        )
    return firsts


def _algorithms(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The flags of a run for each method, preset, or PRESET:METHOD."""
    flags = {}
    for name in names:
        preset, colon, method = name.rpartition(":")
        if colon:
            _fields.check_choice("methods: the preset", preset, tuple(PRESETS))
            _fields.check_choice("methods: the method", method, METHODS)
            flags[name] = (f"--preset={preset}", f"--method={method}")
        else:
            _fields.check_choice("methods", name, (*METHODS, *PRESETS))
            flags[name] = (f"--method={name}" if name in METHODS else f"--preset={name}",)
    default = PRESETS["qusac"].method
    if "qusac" in names and default in names:
        raise ValueError(f"methods: 'qusac' and {default!r} are the same; leave one out")
    return flags


def _check_own(passed_on: Sequence[str]) -> None:
    options = online.make_flags()
    left = cli.parse(options, ["online", *passed_on])
    if left:
        raise ValueError(f"arguments {left} are not flags; flags look like --name=value")
    for name, remedy in _OWN.items():
        if options[name].present:
            raise ValueError(f"{name} is what a suite sets for each run; use {remedy}")


def _checked(arguments: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Steps of a run and the values that define it; raises for what would end it at its start."""
    options = online.make_flags()
    cli.parse(options, ["online", *arguments])
    config = program.read_config(options)
    environments.check_name(options.env)
    spec = environments.spec(options.env, options.action_cost)
    program.task_of(options, spec, config)
    program.check_environment(options, spec.name)
    return options.num_steps, program.description(options, spec, config, {})


def _as_file_name(task: str) -> str:
    return re.sub(r"[^\w.-]", "_", task)
