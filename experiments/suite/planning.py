"""Which runs a suite is made of, and whether each of them can begin.

The runs are ordinary ones of `experiments.online` or `experiments.offline`, a directory each.
"""

import itertools
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import cli, files, run_directory
from experiments.suite import programs
from experiments.suite.programs import Checked, Program
from qusac_jax import _fields, environments
from qusac_jax.checkpoint import Checkpointer
from qusac_jax.qusac import uncertainty
from qusac_jax.qusac.presets import PRESETS
from qusac_jax.qusac.uncertainty import METHODS

_PAPER = "paper"  # a value of --tasks
_OWN_COST = {"action_cost": "--action_costs alone"}


class Combinations(NamedTuple):
    """The lists of which a suite runs every combination, as the command line gives them."""

    tasks: Sequence[str]  # environments, `paper` for the paper's six, or datasets
    methods: Sequence[str]  # names of methods and presets, or PRESET:METHOD
    seeds: Sequence[str]  # numbers and ranges such as `0-4`
    action_costs: Sequence[str] = ()  # numbers; empty for one that all runs have


class PlannedRun(NamedTuple):
    """One run of a suite."""

    name: str  # TASK[-costRHO]-METHOD-sSEED, of its directory and in all that is printed
    path: pathlib.Path  # its directory
    arguments: tuple[str, ...]  # of `experiments.PROGRAM`
    num_steps: int
    program: str = programs.ONLINE.name
    alike: tuple[pathlib.Path, ...] = ()  # directories of runs whose fitted models it may take

    def arguments_now(self) -> tuple[str, ...]:
        """What to start it with; with the models of another run, if one has fitted them."""
        if _has_fitted(self.path):
            return self.arguments
        fitted = [path for path in self.alike if _has_fitted(path)]
        return (*self.arguments, *(f"--dynamics={path}" for path in fitted[:1]))

    def is_done(self) -> bool:
        """Whether it has made all its steps and written its results."""
        try:
            return done_steps(self.path) >= self.num_steps
        except ValueError:  # damaged while a suite runs; `plan` refuses what is so before
            return False


class _Kind(NamedTuple):
    """The runs of one combination, but for their seeds."""

    name: str  # of directories, without the seeds
    arguments: tuple[str, ...]
    checked: Checked


def done_steps(path: pathlib.Path) -> int:
    """Steps of a run that has written its results; 0 for one that has not.

    Raises:
        ValueError: if they cannot be read.
    """
    summary = path / "summary.json"
    remedy = "delete it, and the run goes on from its last checkpoint"
    return files.read_count(summary, "steps", remedy) if summary.is_file() else 0


def _has_fitted(path: pathlib.Path) -> bool:
    return bool(Checkpointer(path / "dynamics").steps())


def _kept_steps(path: pathlib.Path) -> int:
    """Steps of a run that it can go on from, or has written the results of."""
    return max([done_steps(path), *Checkpointer(path / "checkpoints").steps()])


def plan(
    combinations: Combinations,
    num_seeds: int,
    passed_on: Sequence[str],
    folder: pathlib.Path,
    flags_of_suite: Sequence[str] = (),
    program: Program = programs.ONLINE,
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
        program: that the runs are of.

    Raises:
        ValueError: for what would end one of the runs at its start, as far as file names and
            config.json tell.
    """
    _check_kind(folder, program)
    tasks = _without_repeats(program.tasks, _all_tasks(combinations.tasks, program))
    seeds = _without_repeats("seeds", _all_seeds(combinations.seeds))
    groups = sorted(_groups(seeds, num_seeds))
    algorithms = _algorithms(_without_repeats("methods", combinations.methods))
    costs = _costs(combinations.action_costs)
    own = {**program.own, **(_OWN_COST if combinations.action_costs else {})}
    _check_own(passed_on, own, flags_of_suite, program)
    kinds: list[_Kind] = []
    named: dict[tuple[str, str, str], str] = {}
    for task, (cost, cost_flags), (method, flags) in itertools.product(
        tasks, costs.items(), algorithms.items()
    ):
        of_task = f"--{program.task}={task}"
        given = (of_task, *flags, *cost_flags, f"--num_seeds={num_seeds}", *passed_on)
        # With the largest seed, which may be too large.
        checked = _checked(program, (*given, f"--seed={groups[-1]}"))
        same = named.setdefault((task, cost, json.dumps(checked.values["config"])), method)
        if same != method:
            raise ValueError(f"methods: {same!r} and {method!r} are the same; leave one out")
        task_name = files.as_name(program.task_name(task))
        name = f"{task_name}{cost}-{files.as_name(method.replace(':', '+'))}"
        if any(name == kind.name for kind in kinds):
            raise ValueError(
                f"{program.tasks}: two of them would have the directory {name!r}; give {task!r} a "
                "suite of its own"
            )
        kinds.append(_Kind(name, given, checked))
    for shortfall in sorted({kind.checked.shortfall for kind in kinds} - {""}):
        files.warn(shortfall)
    return [run for first in groups for run in _runs(kinds, first, num_seeds, folder, program)]


def _runs(
    kinds: Sequence[_Kind], first: int, num_seeds: int, folder: pathlib.Path, program: Program
) -> list[PlannedRun]:
    """Those with the seeds from `first` on."""
    seeds = f"{first}" if num_seeds == 1 else f"{first}-{first + num_seeds - 1}"
    paths = [folder / f"{kind.name}-s{seeds}" for kind in kinds]
    runs = []
    for path, (_, given, checked) in zip(paths, kinds, strict=True):
        run_directory.previous_config(path, checked.values | {"seed": first})
        if (done := _kept_steps(path)) > checked.num_steps:
            raise ValueError(
                f"num_steps is {checked.num_steps}, but {done} steps are done in {path}; use "
                f"--num_steps={done} or more, or another workdir"
            )
        alike = tuple(
            other
            for other, kind in zip(paths, kinds, strict=True)
            if other != path and kind.checked.fit == checked.fit != ""
        )
        arguments = (*given, f"--seed={first}", f"--workdir={path}")
        runs.append(PlannedRun(path.name, path, arguments, checked.num_steps, program.name, alike))
    return runs


def _check_kind(folder: pathlib.Path, program: Program) -> None:
    """Raises `ValueError` if there are runs of another program, of which steps are others."""
    for path in sorted(config.parent for config in folder.glob("*/config.json")):
        if programs.of_run(path) not in ("", program.name):
            raise ValueError(
                f"workdir: {path} is a run of experiments.{programs.of_run(path)}; choose another "
                f"--workdir for those of experiments.{program.name}"
            )


def _all_tasks(tasks: Sequence[str], program: Program) -> list[str]:
    if program is not programs.ONLINE:
        return list(tasks)
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
    passed_on: Sequence[str],
    own: Mapping[str, str],
    flags_of_suite: Sequence[str],
    program: Program,
) -> None:
    def check(is_given: Callable[[str], bool]) -> None:
        for name, remedy in own.items():
            if is_given(name):
                raise ValueError(f"{name} is what a suite sets for each run; use {remedy}")

    # Before values are parsed, as `--seed=0,1` is a mistake of the name; and after, as there are
    # flag files.
    check({one.lstrip("-").partition("=")[0] for one in passed_on if "=" in one}.__contains__)
    options = program.make_flags()
    left = cli.parse(
        options,
        [program.name, *passed_on],
        also=flags_of_suite,
        listed_by=f"the suite's --help and that of experiments.{program.name} list",
    )
    if left:
        raise ValueError(f"arguments {left} are not flags; flags look like --name=value")
    check(lambda name: bool(options[name].present))


def _checked(program: Program, arguments: Sequence[str]) -> Checked:
    options = program.make_flags()
    cli.parse(options, [program.name, *arguments])
    return program.check(options)
