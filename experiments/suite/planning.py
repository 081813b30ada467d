"""Which runs a suite is made of, and whether each of them can begin.

The runs are ordinary ones of `experiments.online`, a directory each.
"""

import itertools
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import cli, files, online, run_directory
from experiments.training import program, run_flags
from qusac_jax import _fields, environments
from qusac_jax.checkpoint import Checkpointer
from qusac_jax.qusac import own_functions, uncertainty
from qusac_jax.qusac.presets import PRESETS
from qusac_jax.qusac.uncertainty import METHODS

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
_OWN_COST = {"action_cost": "--action_costs alone"}


class Combinations(NamedTuple):
    """The lists of which a suite runs every combination, as the command line gives them."""

    tasks: Sequence[str]  # names of environments, or `paper` for the paper's six
    methods: Sequence[str]  # names of methods and presets, or PRESET:METHOD
    seeds: Sequence[str]  # numbers and ranges such as `0-4`
    action_costs: Sequence[str] = ()  # numbers; empty for one that all runs have


class PlannedRun(NamedTuple):
    """One run of a suite."""

    name: str  # TASK[-costRHO]-METHOD-sSEED, of its directory and in all that is printed
    path: pathlib.Path  # its directory
    arguments: tuple[str, ...]  # of `experiments.online`
    num_steps: int

    def is_done(self) -> bool:
        """Whether it has made all its steps and written its results."""
        try:
            return done_steps(self.path) >= self.num_steps
        except ValueError:  # damaged while a suite runs; `plan` refuses what is so before
            return False


def done_steps(path: pathlib.Path) -> int:
    """Steps of a run that has written its results; 0 for one that has not.

    Raises:
        ValueError: if they cannot be read.
    """
    summary = path / "summary.json"
    remedy = "delete it, and the run goes on from its last checkpoint"
    return files.read_count(summary, "steps", remedy) if summary.is_file() else 0


def _kept_steps(path: pathlib.Path) -> int:
    """Steps of a run that it can go on from, or has written the results of."""
    return max([done_steps(path), *Checkpointer(path / "checkpoints").steps()])


def plan(
    combinations: Combinations,
    num_seeds: int,
    passed_on: Sequence[str],
    folder: pathlib.Path,
    flags_of_suite: Sequence[str] = (),
) -> list[PlannedRun]:
    """The runs of a suite: one for each combination of task, action cost, method and seeds.

    All runs with the first seeds come before any with the next, so that there is something to
    compare early.

    Args:
        combinations: the lists to combine.
        num_seeds: trained together in one run.
        passed_on: further flags of all runs.
        folder: of the runs' directories.
        flags_of_suite: names of flags that one of `passed_on` may be a misspelt form of.

    Raises:
        ValueError: for what would end one of the runs at its start, as far as file names and
            config.json tell.
    """
    tasks = _without_repeats("tasks", _all_tasks(combinations.tasks))
    seeds = _without_repeats("seeds", _all_seeds(combinations.seeds))
    groups = sorted(_groups(seeds, num_seeds))
    algorithms = _algorithms(_without_repeats("methods", combinations.methods))
    costs = _costs(combinations.action_costs)
    own = _OWN | (_OWN_COST if combinations.action_costs else {})
    _check_own(passed_on, own, flags_of_suite)
    checked, named, shortfalls = [], {}, set()
    for task, (cost, cost_flags), (method, flags) in itertools.product(
        tasks, costs.items(), algorithms.items()
    ):
        given = (f"--env={task}", *flags, *cost_flags, f"--num_seeds={num_seeds}", *passed_on)
        name = f"{files.as_name(task)}{cost}-{files.as_name(method.replace(':', '+'))}"
        # With the largest seed, which may be too large.
        num_steps, values, shortfall = _checked((*given, f"--seed={groups[-1]}"))
        shortfalls |= {shortfall} - {""}
        same = named.setdefault((task, cost, json.dumps(values["config"])), method)
        if same != method:
            raise ValueError(f"methods: {same!r} and {method!r} are the same; leave one out")
        if any(name == other for other, *_ in checked):
            raise ValueError(
                f"tasks: two of them would have the directory {name!r}; give {task!r} a suite of "
                "its own"
            )
        checked.append((name, given, num_steps, values))
    for shortfall in sorted(shortfalls):
        files.warn(shortfall)
    runs = []
    for first in groups:
        seed = f"{first}" if num_seeds == 1 else f"{first}-{first + num_seeds - 1}"
        for name, given, num_steps, values in checked:
            path = folder / f"{name}-s{seed}"
            run_directory.previous_config(path, values | {"seed": first})
            if (done := _kept_steps(path)) > num_steps:
                raise ValueError(
                    f"num_steps is {num_steps}, but {done} steps are done in {path}; use "
                    f"--num_steps={done} or more, or another workdir"
                )
            arguments = (*given, f"--seed={first}", f"--workdir={path}")
            runs.append(PlannedRun(path.name, path, arguments, num_steps))
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
    cli.check_distinct(name, values)
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
        preset, colon, method = name.partition(":")
        if colon and (preset in PRESETS or method in (*METHODS, *PRESETS)):
            _fields.check_choice("methods: the preset", preset, PRESETS)
            uncertainty.find(method, "methods: the method")
            flags[name] = (f"--preset={preset}", f"--method={method}")
        elif name in PRESETS:
            flags[name] = (f"--preset={name}",)
        else:
            if not colon:
                _fields.check_choice("methods", name, (*METHODS, *PRESETS))
            uncertainty.find(name, "methods")
            flags[name] = (f"--method={name}",)
    return flags


def _costs(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The flags of a run for each action cost, by a part of its name."""
    if not texts:
        return {"": ()}
    numbers = _without_repeats("action_costs", [_number("action_costs", text) for text in texts])
    shortest = [np.format_float_positional(number, trim="-") for number in sorted(numbers)]
    return {f"-cost{text}": (f"--action_cost={text}",) for text in shortest}


def _number(name: str, text: str) -> float:
    try:
        return float(text) + 0.0  # -0 is 0
    except ValueError:
        raise ValueError(f"{name} must be numbers such as 0,0.01, got {text!r}") from None


def _check_own(
    passed_on: Sequence[str], own: Mapping[str, str], flags_of_suite: Sequence[str]
) -> None:
    def check(is_given: Callable[[str], bool]) -> None:
        for name, remedy in own.items():
            if is_given(name):
                raise ValueError(f"{name} is what a suite sets for each run; use {remedy}")

    # Before values are parsed, as `--seed=0,1` is a mistake of the name; and after, as there are
    # flag files.
    check({one.lstrip("-").partition("=")[0] for one in passed_on if "=" in one}.__contains__)
    options = online.make_flags()
    left = cli.parse(
        options,
        ["online", *passed_on],
        also=flags_of_suite,
        listed_by="the suite's --help and that of experiments.online list",
    )
    if left:
        raise ValueError(f"arguments {left} are not flags; flags look like --name=value")
    check(lambda name: bool(options[name].present))


def _checked(arguments: Sequence[str]) -> tuple[int, dict[str, Any], str]:
    """Steps of a run, the values that define it, and what is to be said if these are too few.

    Raises `ValueError` for what would end it at its start.
    """
    options = online.make_flags()
    cli.parse(options, ["online", *arguments])
    config = run_flags.read_config(options)
    environments.check_name(options.env)
    spec = environments.spec(options.env, options.action_cost)
    task = run_flags.task_of(options.termination, spec, config)
    own_functions.check(config, task.observation_size)
    program.check_environment(options, spec.name, options.num_seeds)
    values = program.description(options, spec, config, {})
    return options.num_steps, values, online.too_few_steps(options.num_steps, config)
