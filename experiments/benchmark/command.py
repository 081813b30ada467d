"""Measures speed on this machine: `python -m experiments.benchmark --quick`.

Prints a Markdown table: each case's median rate with its spread, how far it is from what this
machine's matrix products and copies reach, and how much faster it is than a plain baseline.
"""

import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags

from experiments import cli, files, jax_settings, own_cores, path_flag
from experiments.benchmark import measure, table, torch_agent, torch_baseline
from experiments.benchmark.cases import CASES
from experiments.benchmark.jobs import Job, Setting
from experiments.provenance import describe_program
from qusac_jax import _memory, environments
from qusac_jax._fields import check_choice

_USUAL_SEEDS = {False: (1, 5, 20), True: (1,)}  # by whether the table is quick
_USUAL_REPEAT = {False: 9, True: 3}
_ENV = (
    "to step, and for the agents' sizes; device, UBE and tabular cases have problems of their own"
)


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    about = "; ".join(f"{name}: {case.about}" for name, case in CASES.items())
    flags.DEFINE_list("case", None, f"what to time, by default everything. {about}", **define)
    flags.DEFINE_list("method", None, "methods and presets, by default each case's own", **define)
    flags.DEFINE_list(
        "num_seeds", None, "seeds trained together, by default 1,5,20; 1 with --quick", **define
    )
    flags.DEFINE_integer("repeat", None, "calls of a median; 9, or 3 if quick", 1, **define)
    flags.DEFINE_boolean("quick", False, "smaller sizes, in under a minute", **define)
    flags.DEFINE_boolean("baselines", True, "time the plain baselines, too", **define)
    flags.DEFINE_string("env", "cartpole_swingup", _ENV, **define)
    jax_settings.define_flags(values, with_cache=False)
    path_flag.define(values, "json", None, "file for the rows, a list of objects")
    path_flag.define(values, "markdown", None, "file for the table")
    return values


def run(options: flags.FlagValues) -> int:
    """Times everything and prints the table row by row; what rows will take is said on stderr.

    Returns:
        The exit code: 1 where a row could not be measured.
    """
    setting = _setting(options)
    cases = _names("case", options.case, CASES) or [
        name for name, case in CASES.items() if case.quick or not options.quick
    ]
    _check_methods(setting.methods, cases)
    environments.check_name(options.env)
    for path in (options.json, options.markdown):
        if path:
            files.check_writable(path)
    device = cli.select_device(options.device)[0]
    # Programs of their own are to compute where this one does, or to say that they cannot.
    setting = setting._replace(device=device.platform)
    limits = measure.limits()
    first, about = limits, describe_program() | {"threads": own_cores.count()}
    of_torch = {"agent_update", "agent_update_offline"} & set(cases)
    if setting.has_baselines and of_torch and torch_agent.torch is None:
        _say(torch_baseline.INSTALL)
    print(f"{table.heading(about, first)}\n{table.HEADER}", flush=True)
    rows: list[dict[str, Any]] = []
    has_failed = False
    for name in cases:
        if CASES[name].starts_programs and setting.device == "tpu":
            _say(f"{name}: left out, as a TPU serves one process at a time, which is this one")
            continue
        chosen = CASES[name].chosen(setting)
        jobs = list(CASES[name].jobs(setting, chosen))
        if chosen and not jobs:
            has_failed |= options.case is not None
            _say(
                f"{name}: nothing to measure; fits and rollouts need a method with a model, what "
                "runs on the device the extra playground or brax"
            )
        for job in jobs:
            try:
                row, limits = _measured(job, limits, _memory.available(device))
            # RuntimeError is JAX's, for example where memory runs out.
            except (ValueError, RuntimeError) as error:  # the others can be measured all the same
                has_failed = True
                _say(f"failed: {job.case} {job.method}: {error}")
                continue
            if row is not None:
                rows.append(row | {"is_quick": options.quick} | about)
                print(table.line(row), flush=True)
                _write(options, table.heading(about, first), rows)
    return 1 if has_failed else 0


def _write(options: flags.FlagValues, heading: str, rows: Sequence[table.Row]) -> None:
    """The files that were asked for; after each row, so that an interruption leaves the others."""
    if options.json:
        files.write_json(pathlib.Path(options.json), rows)
    if options.markdown:
        with files.replacing(pathlib.Path(options.markdown)) as file:
            file.write(f"{heading}\n{table.text(rows)}\n")


def _measured(
    job: Job, before: measure.Limits, free: int | None
) -> tuple[dict[str, Any] | None, measure.Limits]:
    """The job's row, and the machine's limits after it; no row where memory is too little for it.

    Its share is of the better of the limits before and after it: on a machine that others use, too,
    they change within minutes.
    """
    expectation = job.expectation(before)
    if free is not None and job.memory > free:
        _say(f"left out, as {_memory.in_words(free)} are free: {expectation}")
        return None, before
    _say(expectation)
    measurement = job.measure()
    after = measure.limits()
    return table.row(job, measurement, before.or_better(after)), after


def _setting(options: flags.FlagValues) -> Setting:
    """What the flags say of all cases; raises `ValueError` for numbers of seeds that are none."""
    num_seeds = _USUAL_SEEDS[options.quick]
    if options.num_seeds is not None:
        num_seeds = tuple(cli.integers("num_seeds", options.num_seeds))
        cli.check_distinct("num_seeds", num_seeds)
    if not num_seeds or min(num_seeds) < 1:
        raise ValueError(
            f"num_seeds must be integers from 1 on, got {list(num_seeds)}; use e.g. 1,5,20"
        )
    return Setting(
        env=options.env,
        device=options.device,
        is_quick=options.quick,
        methods=None if options.method is None else tuple(options.method),
        num_seeds=num_seeds,
        repeat=options.repeat or _USUAL_REPEAT[options.quick],
        has_baselines=options.baselines,
    )


def _check_methods(methods: Sequence[str] | None, cases: Sequence[str]) -> None:
    """Raises `ValueError` if one of the methods is known to none of the cases."""
    known = dict.fromkeys(name for case in cases for name in CASES[case].methods)
    _names("method", methods, known)


def _names(flag: str, names: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """The names that a flag gives, in order and once each; none where it is not given."""
    if names is not None and not names:
        raise ValueError(f"{flag} must name at least one, got none; choose from {', '.join(known)}")
    for name in names or ():
        check_choice(flag, name, tuple(known))
    return list(dict.fromkeys(names or ()))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and times; returns the exit code."""
    return cli.run_with(run, make_flags(), argv, __doc__)
