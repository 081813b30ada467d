"""Statistics over seeds and tasks of the curves that `run_reader` reads; `plot` draws them.

Axes: R seeds (all runs of one task and method together), T points on the x axis.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from experiments.files import warn
from experiments.run_reader import Curve
from qusac_jax import environments
from qusac_jax._messages import require

SUITE_MAX_RETURN = 1000.0  # 1000 steps with rewards in [0, 1]
_RESAMPLES = 2_000  # of the bootstrap, stratified by task


class Summary(NamedTuple):
    """Mean and standard error over seeds of one task and method."""

    task: str
    label: str
    num_seeds: int
    x: np.ndarray  # [T] the part of the x axis that all seeds have reached
    mean: np.ndarray  # [T]
    standard_error: np.ndarray  # [T]; NaN with one seed


class Aggregate(NamedTuple):
    """A statistic over tasks of one method, with its 95 % stratified bootstrap interval.

    With one seed there is none: its ends are NaN.
    """

    label: str
    statistic: str  # "median" | "IQM"
    value: float
    low: float
    high: float
    num_tasks: int
    num_seeds: int


def group(curves: Iterable[Curve]) -> dict[str, dict[str, list[Curve]]]:
    """Curves by task, and within a task by label; both in alphabetical order."""
    grouped: dict[str, dict[str, list[Curve]]] = {}
    for curve in sorted(curves, key=lambda c: (c.task, c.label, str(c.run), c.seed)):
        grouped.setdefault(curve.task, {}).setdefault(curve.label, []).append(curve)
    return grouped


def summarize(curves: Sequence[Curve]) -> Summary:
    """Mean and standard error over the seeds of one task and method.

    Seeds that were evaluated at other points are interpolated linearly; what lies beyond the end of
    the shortest is left out, as a mean over changing seeds would jump.

    Raises:
        ValueError: if the seeds have no part of the x axis in common.
    """
    start = max(curve.x[0] for curve in curves)
    end = min(curve.x[-1] for curve in curves)
    if start > end:
        ranges = (f"seed {c.seed} from {c.x[0]:g} to {c.x[-1]:g}" for c in curves)
        raise ValueError(
            f"runs: the seeds of {curves[0].task} {curves[0].label} have no part of the x axis in "
            f"common ({', '.join(ranges)}); plot them apart"
        )
    union = np.unique(np.concatenate([curve.x for curve in curves]))
    x = union[(union >= start) & (union <= end)]
    values = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])
    num_seeds = len(curves)
    return Summary(
        curves[0].task, curves[0].label, num_seeds, x, values.mean(0), standard_error(values)
    )


def standard_error(values: np.ndarray) -> np.ndarray:
    """Standard error of the mean over the leading axis `[R, ...]`; NaN if R = 1."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return values.std(0, ddof=1) / np.sqrt(len(values))


def plus_minus(mean: float, error: float) -> str:
    """The two as in tables: `12.3 ± 0.4`, without the error where it is NaN."""
    return f"{mean:.1f}" + ("" if np.isnan(error) else f" ± {error:.1f}")


def half_interval(values: np.ndarray) -> float:
    """Half the 95 % t interval of the mean of independent values `[n]`; NaN if n = 1."""
    return float(standard_error(values) * special.stdtrit(max(len(values) - 1, 1), 0.975))


def normalized_final_returns(
    grouped: dict[str, dict[str, list[Curve]]],
    final: Callable[[Curve], float] = lambda curve: curve.final_return,
    *,
    is_score: bool = False,
) -> dict[str, np.ndarray]:
    """Final returns as scores that can be compared between tasks.

    Tasks of the control suite are divided by 1000, the most that their 1000 steps can give. Other
    tasks are mapped linearly so that the worst of all runs that were read scores 0 and the best 1:
    such scores depend on what is compared. Only tasks that all methods were run on count, and of
    each method as many seeds as it has on every task. Where there is no such task, methods and
    settings that were run on the fewest tasks are left out. What is left out is named in a warning.

    Args:
        grouped: as `group` gives them.
        final: the return of a seed that counts.
        is_score: whether `final` is a normalized score, which stays as it is.

    Returns:
        For each label the scores `[R, tasks]`; empty if the methods share no task.
    """
    labels, shared = shared_tasks(grouped)
    if not shared:
        return {}
    if left_out := sorted(grouped.keys() - set(shared)):
        warn(
            f"runs: {', '.join(left_out)}: not run with every method, so left out of the aggregate"
        )
    scores = {}
    for label in labels:
        num_seeds = min(len(grouped[task][label]) for task in shared)
        by_task = []
        for task in shared:
            finals = np.array([final(curve) for curve in grouped[task][label][:num_seeds]])
            by_task.append(finals if is_score else _normalize(grouped[task], final)(finals))
        scores[label] = np.stack(by_task, axis=1)
    return scores


def shared_tasks(
    grouped: Mapping[str, Mapping[str, Sequence[Curve]]],
) -> tuple[list[str], list[str]]:
    """Labels, and the tasks that all of them were run on.

    Where there is no such task, labels that were run on the fewest are left out with a warning.
    """
    num_tasks = collections.Counter(label for by_label in grouped.values() for label in by_label)
    labels, left_out = sorted(num_tasks), []
    with_all = lambda: [task for task in grouped if grouped[task].keys() >= set(labels)]
    while labels and not with_all():
        fewest = min(num_tasks[label] for label in labels)
        left_out += [label for label in labels if num_tasks[label] == fewest]
        labels = [label for label in labels if num_tasks[label] > fewest]
    shared = with_all() if labels else []
    if shared and left_out:
        warn(
            f"runs: {', '.join(left_out)} are left out of the aggregate: with them, no task was "
            "run with every method"
        )
    return labels, shared


def aggregate(scores: dict[str, np.ndarray], *, median_over: str = "tasks") -> list[Aggregate]:
    """Median and interquartile mean (Agarwal et al., 2021), by rliable.

    Args:
        scores: for each label `[R, tasks]`.
        median_over: `tasks`, of the tasks' means over seeds, or `seeds`, of all scores, which one
            task has.

    Raises:
        ValueError: if rliable is missing or does not work.
    """
    needed = {"what": "the aggregate over tasks", "install": "pip install -e '.[plots]'"}
    library, metrics = (require(f"rliable.{name}", **needed) for name in ("library", "metrics"))

    def statistics(values: np.ndarray) -> np.ndarray:
        over_tasks = median_over == "tasks"
        median = metrics.aggregate_median(values) if over_tasks else np.median(values)
        return np.array([median, metrics.aggregate_iqm(values)])

    # rliable draws from NumPy's global generator whatever it is given.
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    try:
        values, intervals = library.get_interval_estimates(scores, statistics, reps=_RESAMPLES)
    finally:
        np.random.set_state(state)  # noqa: NPY002

    def end(label: str, which: int, i: int) -> float:
        return float(intervals[label][which, i]) if scores[label].shape[0] > 1 else float("nan")

    return [
        Aggregate(
            label,
            statistic,
            float(values[label][i]),
            end(label, 0, i),
            end(label, 1, i),
            num_tasks=scores[label].shape[1],
            num_seeds=scores[label].shape[0],
        )
        for label in scores
        for i, statistic in enumerate(("median", "IQM"))
    ]


def is_suite_task(env: str) -> bool:
    """Whether it is of the control suite: `dmc:`, `playground:` or one of the short names."""
    return env.removesuffix(":sincos") in environments.ALIASES or env.startswith(
        ("dmc:", "playground:")
    )


def _normalize(by_label: dict[str, list[Curve]], final: Callable[[Curve], float]):
    if is_suite_task(next(iter(by_label.values()))[0].env):
        return lambda returns: returns / SUITE_MAX_RETURN
    finals = [final(curve) for curves in by_label.values() for curve in curves]
    low, spread = min(finals), max(finals) - min(finals)
    return lambda returns: (returns - low) / (spread or 1.0)
