"""Reads run directories and condenses them over seeds and tasks; `plot` draws what comes out.

A run directory holds `config.json` and `metrics.csv`, in which a row is one evaluation of one seed.
Axes: R seeds (all runs of one task and method together), T points on the x axis.
"""

import csv
import io
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qusac_jax.qusac import presets

SUITE_MAX_RETURN = 1000.0  # 1000 steps with rewards in [0, 1]
_REQUIRED_COLUMNS = ("step", "seed", "eval_return", "eval_task_return")
_REQUIRED_KEYS = ("env", "method", "preset")


class Curve(NamedTuple):
    """The evaluations of one seed of one run."""

    env: str
    label: str  # preset, or method where the preset is qusac
    run: pathlib.Path
    seed: int
    x: np.ndarray  # [T] increasing
    y: np.ndarray  # [T]
    final_return: float  # of the last evaluation, with action cost
    final_task_return: float  # without


class Summary(NamedTuple):
    """Mean and standard error over seeds of one task and method."""

    env: str
    label: str
    num_seeds: int
    x: np.ndarray  # [T] the part of the x axis that all seeds have reached
    mean: np.ndarray  # [T]
    standard_error: np.ndarray  # [T]; NaN with one seed


class Aggregate(NamedTuple):
    """A statistic over tasks of one method, with its 95 % stratified bootstrap interval."""

    label: str
    statistic: str  # "median" | "IQM"
    value: float
    low: float
    high: float
    num_tasks: int
    num_seeds: int


def read_runs(
    run_directories: Iterable[str | os.PathLike[str]],
    *,
    x: str = "step",
    y: str = "eval_return",
    smooth: int = 1,
) -> list[Curve]:
    """The curves of all seeds of all runs.

    Directories that are no runs are passed over; broken runs and seeds that were read already are
    too, with a warning. Runs of one task and method whose settings differ are told apart in their
    labels.

    Args:
        run_directories: what `runs/*` expands to.
        x: the column of metrics.csv for the x axis.
        y: the column to draw.
        smooth: number of evaluations in the moving average (the last ones), >= 1.

    Raises:
        ValueError: if there is no run with an evaluation.
    """
    if smooth < 1:
        raise ValueError(f"smooth must be at least 1, got {smooth}; 1 draws the values as they are")
    paths = [pathlib.Path(path) for path in run_directories]
    found = [path for path in paths if (path / "config.json").is_file()]
    curves: list[Curve] = []
    settings: dict[pathlib.Path, dict[str, Any]] = {}
    problems = []
    for path in found:
        try:
            config = _read_config(path / "config.json")
            curves += _read_run(path, config, x, y, smooth)
            settings[path] = _settings(config)
        except ValueError as error:
            problems.append(str(error))
    if not curves:
        what = f"{len(found)} runs without an evaluation yet" if found else "no run"
        raise ValueError(
            "; ".join(problems)
            or f"runs: found {what} in {', '.join(map(str, paths)) or 'no directories'}; name "
            "directories with config.json and metrics.csv, for example runs/*"
        )
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    return _without_repeats(_told_apart(curves, settings))


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """What makes runs of one task and method different things."""
    inner = config.get("config")
    fields = dict(inner) if isinstance(inner, dict) else {}
    return fields | {name: config.get(name) for name in ("action_cost", "termination")}


def _told_apart(curves: list[Curve], settings: dict[pathlib.Path, dict[str, Any]]) -> list[Curve]:
    together: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for curve in curves:
        together.setdefault((curve.env, curve.label), []).append(settings[curve.run])
    relabelled = []
    for curve in curves:
        others, own = together[curve.env, curve.label], settings[curve.run]
        names = sorted({name for other in others for name in other})
        differing = [n for n in names if any(other.get(n) != own.get(n) for other in others)]
        label = " ".join([curve.label, *(f"{name}={own.get(name)}" for name in differing)])
        relabelled.append(curve._replace(label=label))
    return relabelled


def _without_repeats(curves: list[Curve]) -> list[Curve]:
    kept: dict[tuple[str, str, int], Curve] = {}
    for curve in curves:
        first = kept.setdefault((curve.env, curve.label, curve.seed), curve)
        if first is not curve:
            print(
                f"warning: runs: seed {curve.seed} of {curve.env} {curve.label} is in {first.run} "
                f"and {curve.run}; the latter is left out",
                file=sys.stderr,
            )
    return list(kept.values())


def group(curves: Iterable[Curve]) -> dict[str, dict[str, list[Curve]]]:
    """Curves by task, and within a task by label; both in alphabetical order."""
    grouped: dict[str, dict[str, list[Curve]]] = {}
    for curve in sorted(curves, key=lambda c: (c.env, c.label, str(c.run), c.seed)):
        grouped.setdefault(curve.env, {}).setdefault(curve.label, []).append(curve)
    return grouped


def summarize(curves: Sequence[Curve]) -> Summary:
    """Mean and standard error over the seeds of one task and method.

    Seeds that were evaluated at other points are interpolated linearly; what lies beyond the end of
    the shortest is left out, as a mean over changing seeds would jump.
    """
    start = max(curve.x[0] for curve in curves)
    end = min(curve.x[-1] for curve in curves)
    union = np.unique(np.concatenate([curve.x for curve in curves]))
    x = union[(union >= start) & (union <= end)]
    values = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])
    num_seeds = len(curves)
    return Summary(
        curves[0].env, curves[0].label, num_seeds, x, values.mean(0), standard_error(values)
    )


def standard_error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over the leading axis `[R, ...]`; NaN if R = 1."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return values.std(0, ddof=1) / np.sqrt(len(values))


def normalized_final_returns(grouped: dict[str, dict[str, list[Curve]]]) -> dict[str, np.ndarray]:
    """Final returns as scores that can be compared between tasks.

    Tasks of the control suite are divided by 1000, the most that their 1000 steps can give. Other
    tasks are mapped linearly so that the worst of all runs that were read scores 0 and the best 1:
    such scores depend on what is compared. Only tasks that all methods were run on count, and of
    each method as many seeds as it has on every task.

    Returns:
        For each label the scores `[R, tasks]`; empty if the methods share no task.
    """
    labels = sorted({label for by_label in grouped.values() for label in by_label})
    shared = [env for env in grouped if set(grouped[env]) == set(labels)]
    if not shared:
        return {}
    scores = {}
    for label in labels:
        num_seeds = min(len(grouped[env][label]) for env in shared)
        scores[label] = np.stack(
            [
                _normalize(env, grouped[env])(
                    np.array([curve.final_return for curve in grouped[env][label][:num_seeds]])
                )
                for env in shared
            ],
            axis=1,
        )
    return scores


def aggregate(
    scores: dict[str, np.ndarray], *, num_resamples: int = 5000, seed: int = 0
) -> list[Aggregate]:
    """Median and interquartile mean over tasks (Agarwal et al., 2021), by rliable.

    Args:
        scores: for each label `[R, tasks]`.
        num_resamples: of the bootstrap, stratified by task.
        seed: of the bootstrap.

    Raises:
        ValueError: if rliable is missing or does not work.
    """
    try:
        from rliable import library, metrics
    except Exception as error:  # what breaks is below it, and fails in many ways
        raise ValueError(
            f"the aggregate over tasks needs rliable, which cannot be imported ({error}); install "
            "the extra with: pip install -e '.[plots]'"
        ) from error

    def statistics(values: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_median(values), metrics.aggregate_iqm(values)])

    # rliable draws from NumPy's global generator whatever it is given.
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        values, intervals = library.get_interval_estimates(scores, statistics, reps=num_resamples)
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return [
        Aggregate(
            label,
            statistic,
            float(values[label][i]),
            float(intervals[label][0, i]),
            float(intervals[label][1, i]),
            num_tasks=scores[label].shape[1],
            num_seeds=scores[label].shape[0],
        )
        for label in scores
        for i, statistic in enumerate(("median", "IQM"))
    ]


def is_suite_task(env: str) -> bool:
    """Whether an environment belongs to the control suite: `dmc:` or one of the short names."""
    return not env.startswith("gym:")


def _normalize(env: str, by_label: dict[str, list[Curve]]):
    if is_suite_task(env):
        return lambda returns: returns / SUITE_MAX_RETURN
    finals = [curve.final_return for curves in by_label.values() for curve in curves]
    low, spread = min(finals), max(finals) - min(finals)
    return lambda returns: (returns - low) / (spread or 1.0)


def _read_run(
    path: pathlib.Path, config: dict[str, Any], x: str, y: str, smooth: int
) -> list[Curve]:
    preset, method = config["preset"], config["method"]
    own_method = presets.PRESETS[preset].method if preset in presets.PRESETS else method
    label = method if preset == "qusac" else preset
    if preset != "qusac" and method != own_method:
        label = f"{preset} {method}"
    columns = _read_metrics(path / "metrics.csv", {x, y, *_REQUIRED_COLUMNS})
    curves = []
    for seed in np.unique(columns["seed"]):
        rows = (columns["seed"] == seed) & np.isfinite(columns[x]) & np.isfinite(columns[y])
        if not rows.any():
            continue
        positions, first = np.unique(columns[x][rows], return_index=True)
        curves.append(
            Curve(
                env=config["env"],
                label=label,
                run=path,
                seed=int(seed),
                x=positions,
                y=_moving_average(columns[y][rows][first], smooth),
                final_return=float(columns["eval_return"][rows][first][-1]),
                final_task_return=float(columns["eval_task_return"][rows][first][-1]),
            )
        )
    return curves


def _read_config(path: pathlib.Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
        if not isinstance(config, dict):
            raise ValueError("it is not a JSON object")
        missing = [key for key in _REQUIRED_KEYS if not isinstance(config.get(key), str)]
    except (OSError, ValueError) as error:
        raise ValueError(f"runs: {path} cannot be read ({error}); leave this run out") from error
    if missing:
        raise ValueError(f"runs: {path} has no {', '.join(missing)}; leave this run out")
    return config


def _read_metrics(path: pathlib.Path, wanted: set[str]) -> dict[str, np.ndarray]:
    try:
        text = path.read_text() if path.is_file() else ""
    except (OSError, ValueError) as error:
        raise ValueError(f"runs: {path} cannot be read ({error}); leave this run out") from error
    # A run that was killed, or is being written, may end in the middle of a line.
    complete = text[: text.rfind("\n") + 1]
    rows = csv.reader(io.StringIO(complete))
    header = next(rows, None)
    if header is None:
        return {name: np.zeros(0) for name in wanted}
    missing = sorted(wanted - set(header))
    if missing:
        raise ValueError(
            f"runs: {path} has no column {', '.join(missing)}; it has {', '.join(header)}"
        )
    indices = {name: header.index(name) for name in wanted}
    values: dict[str, list[float]] = {name: [] for name in wanted}
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(
                f"runs: {path} has {len(row)} values in line {number} and {len(header)} columns; "
                "the file is damaged, leave this run out"
            )
        for name, index in indices.items():
            try:
                values[name].append(float(row[index] or "nan"))
            except ValueError as error:
                raise ValueError(
                    f"runs: {path}, line {number}: {name} is {row[index]!r}, which is no number; "
                    "the file is damaged, leave this run out"
                ) from error
    return {name: np.array(column) for name, column in values.items()}


def _moving_average(values: np.ndarray, width: int) -> np.ndarray:
    """Mean of the last `width` values, of fewer at the start."""
    total = np.cumsum(np.concatenate([[0.0], values]))
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - width, 0)
    return (total[end] - total[start]) / (end - start)
