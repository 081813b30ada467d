"""What a suite has to show: figures and tables."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments import figures, files, markdown, published_curves, results, run_reader
from experiments.published_curves import PublishedCurve, PublishedPoint
from experiments.run_reader import Curve
from experiments.suite import ladder, programs, unfinished_runs
from experiments.suite.planning import PlannedRun
from experiments.suite.unfinished_runs import Unfinished

_PUBLISHED_UPDATES = 10  # per step, of all agents, SAC too

_Grouped = dict[str, dict[str, list[Curve]]]
_TwoCells = tuple[str, str]
_NONE: _TwoCells = ("-", "-")


class _Measure(NamedTuple):
    """What runs are compared by."""

    column: str  # of metrics.csv
    evaluations: int  # the last ones, whose mean counts
    name: str  # in tables
    axis: str  # in figures

    @property
    def is_score(self) -> bool:
        """Whether it is a score in percent, the same on all datasets."""
        return self.column == "eval_score"


# The published values, too, are means of so many evaluations.
_MEAN = "mean of the last 10 evaluations"
_ONLINE = _Measure("eval_return", 10, _MEAN, _MEAN)
# Of the last policy alone, as offline there are no returns by which to choose another.
_OFFLINE = _Measure("eval_return", 1, "return of the last policy", "return")
_SCORES = _Measure("eval_score", 1, "score of the last policy, %", "normalized score, %")


def write(
    runs: pathlib.Path, jobs: pathlib.Path, output: pathlib.Path, planned: Sequence[PlannedRun]
) -> tuple[str, list[Unfinished]]:
    """Draws learning_curves.png, and action_costs.png of several costs, and writes report.md.

    Args:
        runs: folder with the directories of the runs.
        jobs: folder with submitit's files of each run.
        output: folder to write to.
        planned: runs that there should be; others are found in the folders.

    Returns:
        The report, and the runs that are not done, planned ones or not.
    """
    unfinished = unfinished_runs.find(runs, jobs, planned)
    try:
        there = [path for path in unfinished_runs.folders(runs) if unfinished_runs.is_run(path)]
        if not there:
            raise ValueError(f"no run in {runs}")
        by = _measure(there)
        curves = run_reader.read_runs(there, y=by.column, smooth=by.evaluations)
        parts = _results(curves, by, output)
    except run_reader.NoCurveError:
        parts = ["No run has an evaluation yet."]
    except ValueError as error:
        parts = [f"{error}"]
    if unfinished:
        wanted = lambda one: "" if one.num_steps is None else f", {one.num_steps} steps wanted"
        lines = (f"- {one.name}{wanted(one)}: {one.reason}" for one in unfinished)
        parts.append("\n".join(["Not finished:", "", *lines]))
    text = "\n\n".join(parts) + "\n"
    with files.replacing(output / "report.md", is_shared=True) as file:
        file.write(text)
    return text, unfinished


def _measure(runs: Sequence[pathlib.Path]) -> _Measure:
    """Scores where all runs have some."""
    kinds = {run: programs.of_run(run) for run in runs}
    offline = [run for run in runs if kinds[run] == programs.OFFLINE.name]
    if not offline or programs.ONLINE.name in kinds.values():
        return _ONLINE
    has_reference = lambda run: files.read_json(run / "config.json")["dataset"].get("reference")
    return _SCORES if all(map(has_reference, offline)) else _OFFLINE


def _results(curves: Sequence[Curve], by: _Measure, output: pathlib.Path) -> list[str]:
    """Draws the figures; returns the tables."""
    published, grouped = _published_curves(curves), results.group(curves)
    ends = {
        (task, label): min(curve.x[-1] for curve in seeds)
        for task, by_label in grouped.items()
        for label, seeds in by_label.items()
    }
    final = lambda curve: _return_at(curve, ends[curve.task, curve.label])
    figures.draw_curves(
        curves, output / "learning_curves.png", x="step", y=by.axis, published=published
    )
    # A ladder compares at the same step; runs that have made none yet do not hold it up.
    begun = [curve for curve in curves if ends[curve.task, curve.label] > 0]
    first_ends = {
        curve.task: min(end for (task, _), end in ends.items() if task == curve.task and end > 0)
        for curve in begun
    }
    if ladders := ladder.ladders(begun, lambda curve: _return_at(curve, first_ends[curve.task])):
        theirs = ladder.published(ladders, first_ends)
        ladder.draw(ladders, theirs, output / "action_costs.png", steps=first_ends, y=by.axis)
    try:
        over_seeds = {task: _over_seeds(by_label, final) for task, by_label in grouped.items()}
        over_tasks = _over_tasks(grouped, by)
    except ValueError as error:  # no rliable
        over_seeds, over_tasks = {}, [f"{error}"]
    return [_table(grouped, by, over_seeds, ends), *over_tasks]


def _published_curves(curves: Sequence[Curve]) -> dict[str, list[PublishedCurve]]:
    """By task, where all runs of it have the action cost of what was published."""
    costs: dict[str, set[float]] = {}
    for curve in curves:
        if not curve.is_offline:
            costs.setdefault(curve.env, set()).add(curve.action_cost)
    return {
        env: found
        for env, (cost, *others) in ((env, sorted(each)) for env, each in costs.items())
        if not others and (found := published_curves.curves(env, cost))
    }


def _return_at(curve: Curve, end: float) -> float:
    """Mean of the last evaluations up to a step that all seeds have reached; NaN before any."""
    return float(curve.y[curve.x <= end][-1]) if curve.x[0] <= end else float("nan")


def _published_point(curve: Curve, step: float) -> PublishedPoint | None:
    """What was published of the same method, task and action cost at that step."""
    if curve.is_offline or curve.settings.get("init_from"):  # which has learned from a dataset
        return None
    name = curve.name.removeprefix("paper_").removeprefix("paper ")
    for theirs in published_curves.curves(curve.env, curve.action_cost):
        updates = curve.settings.get("updates_per_step", _PUBLISHED_UPDATES)
        if theirs.name == name and updates == _PUBLISHED_UPDATES:
            there = theirs.at(step)
            return None if np.isnan(there.mean) else there
    return None


def _table(
    grouped: _Grouped,
    by: _Measure,
    over_seeds: dict[str, dict[str, _TwoCells]],
    ends: Mapping[tuple[str, str], float],
) -> str:
    """By task and method; the return of a seed is the mean of its last evaluations up to `ends`."""
    columns = [
        *("task", "method", "seeds", "steps", by.name),
        *("IQM over seeds", "median over seeds", "published", "least to most"),
    ]
    lines = [markdown.head(columns, texts=("task", "method"))]
    for task, by_label in grouped.items():
        for label, curves in by_label.items():
            end = ends[task, label]
            returns = np.array([_return_at(curve, end) for curve in curves])
            mean = _plus_minus(returns.mean(), float(results.standard_error(returns)))
            of_seeds = over_seeds.get(task, {}).get(label, _NONE)
            theirs = _in_words(_published_point(curves[0], end))
            cells = (task, label, len(curves), f"{end:.0f}", mean, *of_seeds, *theirs)
            lines.append(markdown.row(cells))
    counts = [len(curve.x) for one in grouped.values() for each in one.values() for curve in each]
    if min(counts) < by.evaluations:
        lines += [
            "",
            f"Of runs with fewer than {by.evaluations} evaluations all count, the one before "
            "training, too.",
        ]
    return "\n".join(lines)


def _over_seeds(
    by_label: dict[str, list[Curve]], final: Callable[[Curve], float]
) -> dict[str, _TwoCells]:
    """Two cells by method, the interquartile mean and the median, with 95 % intervals.

    Methods with one seed, which have no intervals, are left out.
    """
    scores = {
        label: np.array([[final(curve)] for curve in curves])
        for label, curves in by_label.items()
        if len(curves) > 1
    }
    scores = {label: values for label, values in scores.items() if np.isfinite(values).all()}
    if not scores:
        return {}
    found = {
        (one.label, one.statistic): _interval(one, ".1f")
        for one in results.aggregate(scores, median_over="seeds")
    }
    return {label: (found[label, "IQM"], found[label, "median"]) for label in scores}


def _over_tasks(grouped: _Grouped, by: _Measure) -> list[str]:
    """Interquartile mean and median over tasks, if there are several that all methods share.

    Returns count at the steps that all seeds of these methods have made on a task; where some have
    made none, the task waits for them.
    """
    if len(grouped) < 2:
        return []
    labels, shared = results.shared_tasks(grouped)
    made = {
        task: min(curve.x[-1] for label in labels for curve in grouped[task][label])
        for task in shared
    }
    begin = lambda task: max(curve.x[0] for label in labels for curve in grouped[task][label])
    ends = {task: end for task, end in made.items() if end > 0 and begin(task) <= end}
    final = lambda curve: _return_at(curve, ends[curve.task])
    kept = {task: {label: grouped[task][label] for label in labels} for task in ends}
    scores = results.normalized_final_returns(kept, final, is_score=by.is_score) if kept else {}
    if not scores or next(iter(scores.values())).shape[1] < 2:
        return []
    by_label: dict[str, dict[str, results.Aggregate]] = {}
    for one in results.aggregate(scores):
        by_label.setdefault(one.label, {})[one.statistic] = one
    steps = ", ".join(f"{task} {end:.0f}" for task, end in ends.items())
    lines = [
        f"Over tasks, with 95 % stratified bootstrap intervals, {_scale(kept, by)}, up "
        f"to the steps that all runs of a task have reached ({steps}):",
        "",
        markdown.head(["method", "tasks", "seeds", "IQM", "median"], texts=("method",)),
    ]
    for label, found in by_label.items():
        iqm, median = found["IQM"], found["median"]
        digits = ".1f" if by.is_score else ".3f"
        intervals = (_interval(one, digits) for one in (iqm, median))
        lines.append(markdown.row((label, iqm.num_tasks, iqm.num_seeds, *intervals)))
    return ["\n".join(lines)]


def _scale(grouped: _Grouped, by: _Measure) -> str:
    """What the scores over tasks are."""
    if by.is_score:
        return "of normalized scores in percent"
    env = {task: next(iter(by_label.values()))[0].env for task, by_label in grouped.items()}
    others = [task for task in grouped if not results.is_suite_task(env[task])]
    scale = "as a part of the largest return"
    if others:
        scale += f" ({', '.join(others)}: from the worst, 0, to the best, 1, of these runs)"
    return scale


def _interval(one: results.Aggregate, digits: str) -> str:
    interval = f" [{one.low:{digits}}, {one.high:{digits}}]" if one.num_seeds > 1 else ""
    return f"{one.value:{digits}}{interval}"


def _in_words(published: PublishedPoint | None) -> _TwoCells:
    """The last two cells of a row."""
    if published is None:
        return _NONE
    mean = results.plus_minus(published.mean, published.standard_error)
    return mean, f"{published.least:.1f} to {published.most:.1f}"


def _plus_minus(mean: float, error: float) -> str:
    return "-" if np.isnan(mean) else results.plus_minus(mean, error)
