"""Tabular experiments: the paper's toy example, DeepSea and 7-room environment, and others.

Examples:
  python -m experiments.tabular --env=toy
  python -m experiments.tabular --env=deep_sea --length=20 --method=exact_ube --num_seeds=5
  python -m experiments.tabular --env=seven_room --method=psrl --num_seeds=10
  python -m experiments.tabular --env=river_swim --method=psrl
  python -m experiments.tabular --env=grid --map=map.txt --support
  python -m experiments.tabular --env=deep_sea --figure --published=deep_sea.csv
  python -m experiments.tabular --env=seven_room --inspect --inspect_episodes=100,500,1000
"""

import dataclasses
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments import cli, jax_settings, path_flag
from experiments.tabular import (
    catalogue,
    figures,
    finished_runs,
    inspection,
    memory,
    recorded_run,
    setup,
)
from qusac_jax import ube
from qusac_jax._fields import check_choice
from qusac_jax.tabular import agent, environments

ENVIRONMENTS = ("toy", *catalogue.NAMES)
_PUBLISHED_METHODS = ("exact_ube", "pombu", "ensemble_var", "psrl")
_PUBLISHED_LENGTHS = ("10", "15", "20", "25", "30", "35", "40")


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_string("env", "deep_sea", f"one of {', '.join(ENVIRONMENTS)}", **define)
    flags.DEFINE_string("method", "exact_ube", f"one of {', '.join(agent.METHODS)}", **define)
    flags.DEFINE_integer("length", 10, "L of DeepSea, which has L * L states", **define)
    sizes = ", ".join(f"{name} ({what})" for name, what in catalogue.SIZES.items() if what)
    flags.DEFINE_integer("size", None, f"of {sizes}; default: its own", **define)
    path_flag.define(values, "map", None, "text file with the map of --env=grid")
    flags.DEFINE_boolean("support", False, "tell the agent which successors are possible", **define)
    flags.DEFINE_boolean("timed", False, "make the time of an episode part of the state", **define)
    flags.DEFINE_integer("num_seeds", 5, "independent runs", **define)
    flags.DEFINE_integer("seed", 0, "first seed; the others follow it", 0, cli.MAX_SEED, **define)
    flags.DEFINE_integer(
        "num_episodes", None, "default 1000, or the paper's 5000 (7-room)", **define
    )
    flags.DEFINE_float("discount", 0.99, "of the agent, in [0, 1)", **define)
    flags.DEFINE_float(
        "risk", 1.0, "lambda: positive seeks uncertainty, negative avoids it", **define
    )
    flags.DEFINE_integer("num_members", 5, "N, MDPs sampled per update", **define)
    flags.DEFINE_float(
        "min_local",
        None,
        "u_min; default the paper's -0.05 (DeepSea), else 0",
        **define,
    )
    flags.DEFINE_string(
        "solver",
        "warm",
        f"one of {', '.join(agent.SOLVERS)}; warm starts from the last solution",
        **define,
    )
    flags.DEFINE_string(
        "seed_axis",
        "auto",
        "vmap (all seeds at once), map (in turn) or auto: map on CPU, else vmap",
        **define,
    )
    path_flag.define(
        values,
        "workdir",
        None,
        "default runs/tabular/ENV_..._METHOD; a run that was stopped there continues",
    )
    flags.DEFINE_enum(
        "resume",
        "latest",
        ["latest", "latest_good"],
        "which checkpoint to continue from; latest_good skips damaged ones",
        **define,
    )
    flags.DEFINE_boolean("memory", False, "print the memory that the run needs, and exit", **define)
    jax_settings.define_flags(values)
    flags.DEFINE_boolean("figure", False, "run and draw the paper's comparison", **define)
    flags.DEFINE_list("methods", list(_PUBLISHED_METHODS), "compared by --figure", **define)
    flags.DEFINE_list(
        "lengths", list(_PUBLISHED_LENGTHS), "of DeepSea, compared by --figure", **define
    )
    path_flag.define(values, "published", None, "CSV of published results to draw beside them")
    flags.DEFINE_boolean("inspect", False, "draw heat maps of the agent's belief", **define)
    flags.DEFINE_list(
        "inspect_episodes", ["100", "500", "1000"], "episodes after which --inspect draws", **define
    )
    return values


def run_one(options, *, method: str, length: int, workdir: pathlib.Path) -> int | None:
    """Runs a method, or goes on with it; returns the number of the signal that stopped it."""
    environment = setup.make_environment(options, length)
    planned = _checked_setup(options, environment, method, length)
    if options.memory:
        needed = memory.expected(environment, planned.config, options.num_seeds)
        print(f"{planned.label}: {needed.describe()}")
        return None
    return recorded_run.run(planned, workdir, resume=options.resume)


def _checked_setup(
    options, environment: environments.Environment, method: str, length: int
) -> setup.Setup:
    """Of a run of all seeds; raises `ValueError` if it cannot be done."""
    config = setup.make_config(options, environment, method=method, length=length)
    seeds = range(options.seed, options.seed + options.num_seeds)
    planned = setup.Setup(environment, config, seeds, length)
    setup.check_run(options, planned)
    return planned


def print_toy() -> None:
    """Table 1 of the paper, and the variance of the enumerated values beside it."""
    belief = environments.toy()
    exact = ube.solve_exact(*belief, min_local=None)
    pombu = ube.solve_pombu(*belief)
    enumerated = ube.ensemble_variance(*belief)
    print("state      u(s)      w(s)      W(s)      U(s)  variance by enumeration")
    for s in (0, 2):
        values = (exact.local_v, pombu.local_v, pombu.v, exact.v, enumerated.v)
        print(f"s{s}   " + " ".join(f"{float(value[s]):9.4f}" for value in values))


def run_figure(options, workdir: pathlib.Path) -> int | None:
    """Runs what is not yet in `workdir` and draws the comparison.

    Returns:
        The number of the signal that stopped it, or None.
    """
    is_sea = catalogue.has_length(options.env)
    published = None
    if options.published:
        axis = "length" if is_sea else "episode"
        published = finished_runs.read_published(options.published, axis)
    lengths = cli.integers("lengths", options.lengths) if is_sea else [0]
    if not lengths:
        raise ValueError("lengths must name at least one to compare, got none")
    cli.check_distinct("lengths", lengths)
    for length in lengths:  # mistakes show before the work starts
        environment = setup.make_environment(options, length)
        for method in options.methods:
            _checked_setup(options, environment, method, length)
    workdirs = []
    for length in lengths:
        for method in options.methods:
            workdirs.append(workdir / (f"{method}_{length}" if is_sea else method))
            signal_number = run_one(options, method=method, length=length, workdir=workdirs[-1])
            if signal_number is not None:
                return signal_number
    if options.memory:
        return None
    runs = finished_runs.read(workdirs)
    draw = figures.draw_deep_sea if is_sea else figures.draw_rooms
    print(f"figure -> {draw(runs, published, workdir / 'figure.png')}")
    return None


def run_inspect(options, workdir: pathlib.Path) -> int | None:
    """Runs one seed and draws heat maps after some episodes.

    Returns:
        The number of the signal that stopped it, or None.
    """
    drawn_at = sorted(set(cli.integers("inspect_episodes", options.inspect_episodes)))
    if not drawn_at or drawn_at[0] < 1:
        raise ValueError(f"inspect_episodes must be positive, got {options.inspect_episodes}")
    if options.num_episodes not in (None, drawn_at[-1]):
        raise ValueError(
            f"num_episodes is {options.num_episodes}, but the last of inspect_episodes, "
            f"{drawn_at[-1]}, ends the run; leave num_episodes out"
        )
    length = options.length if catalogue.has_length(options.env) else 0
    environment = setup.make_environment(options, length)
    config = dataclasses.replace(
        setup.make_config(options, environment, method=options.method, length=length),
        num_episodes=drawn_at[-1],
        num_chunks=drawn_at[-1] // math.gcd(*drawn_at),
    )
    planned = setup.Setup(environment, config, [options.seed], length)
    setup.check_run(options, planned)
    if environment.cells is None:
        what = f"env {options.env!r} is none" + " with --timed; leave that out" * options.timed
        raise ValueError(f"inspect draws grids, but {what}")
    return inspection.run(planned, drawn_at, workdir)


def _check_read(options, what: str, *unread: str) -> None:
    """Raises `ValueError` if a flag was set that has no influence on what is done."""
    given = [f"--{name}" for name in unread if options[name].present]
    if given:
        raise ValueError(f"{what}, does not read {', '.join(given)}; leave that out")


def _check_methods(options) -> None:
    """Raises `ValueError` for a method that is none, and a flag that no method reads."""
    methods = options.methods if options.figure else [options.method]
    if not methods:
        raise ValueError("methods must name at least one to compare, got none")
    cli.check_distinct("methods", methods)
    for method in methods:
        check_choice("method", method, agent.METHODS)
    unread = [
        f"--{name}={options[name].value} (which {', '.join(readers)} read)"
        for name, readers in agent.READ_BY.items()
        if options[name].present and not set(methods) & set(readers)
    ]
    if unread:
        what = "a figure of " * options.figure + f"method {', '.join(map(repr, methods))}"
        raise ValueError(f"{what} does not read {', '.join(unread)}; leave that out")


def _check_toy(options) -> None:
    """Raises `ValueError` if another flag was set than those about JAX."""
    about_jax = flags.FlagValues()
    jax_settings.define_flags(about_jax)
    unread = [name for name in make_flags() if name != "env" and name not in about_jax]
    _check_read(options, "env 'toy', which prints a table", *unread)


def _check_mode(options) -> None:
    """Raises `ValueError` if a flag was set that a figure, an inspection or a run does not read."""
    has_length = catalogue.has_length(options.env)
    if not has_length:
        _check_read(options, f"env {options.env!r}, which has no length", "length", "lengths")
    if options.figure:
        what = "figure, which compares --methods" + " at --lengths" * has_length
        _check_read(options, what, "method", "length", "inspect_episodes")
    elif options.inspect:
        about_runs = ("methods", "lengths", "published", "num_seeds", "resume", "memory")
        _check_read(options, "inspect, which draws one run of one seed", *about_runs)
    else:
        others = ("methods", "lengths", "published", "inspect_episodes")
        _check_read(options, "a single run, without --figure or --inspect", *others)


def _workdir(options) -> pathlib.Path:
    """What was chosen, or a folder named after what is run."""
    if options.workdir:
        return pathlib.Path(options.workdir)
    what = [options.env]
    what += [options.length] if catalogue.has_length(options.env) and not options.figure else []
    what += [] if options.size is None else [options.size]
    what += [pathlib.Path(options.map).stem] if options.map else []
    what += [flag for flag in ("support", "timed") if options[flag].value]
    kind = "figure" if options.figure else options.method + "_inspect" * options.inspect
    return pathlib.Path("runs/tabular", "_".join(map(str, [*what, kind])))


def run(options) -> int:
    """Does what the flags ask for; returns the exit code."""
    if options.figure and options.inspect:
        raise ValueError("figure and inspect are two programs; leave one of the flags out")
    cli.select_device(options.device)
    if options.env == "toy":
        _check_toy(options)
        print_toy()
        return 0
    check_choice("env", options.env, ENVIRONMENTS)
    _check_mode(options)
    if options.num_seeds < 1:
        raise ValueError(f"num_seeds must be at least 1, got {options.num_seeds}")
    cli.check_seeds(options.seed, options.num_seeds)
    _check_methods(options)
    workdir = _workdir(options)
    if options.figure:
        signal_number = run_figure(options, workdir)
    elif options.inspect:
        signal_number = run_inspect(options, workdir)
    else:
        length = options.length if catalogue.has_length(options.env) else 0
        signal_number = run_one(options, method=options.method, length=length, workdir=workdir)
        if options.memory:
            return 0
        runs = finished_runs.read([workdir])
        print(f"figure -> {figures.draw_regret(runs, workdir / 'regret.png')}")
    return 0 if signal_number is None else 128 + signal_number


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and runs; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)
