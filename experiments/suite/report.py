"""What a suite has to show: figures and tables."""

import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from experiments import figures, files, markdown, published_curves, results, run_reader
from experiments.published_curves import PublishedCurve, PublishedPoint
from experiments.run_reader import Curve
from experiments.suite import ladder, unfinished_runs
from experiments.suite.planning import PlannedRun
from experiments.suite.unfinished_runs import Unfinished

# The published values, too, are means of so many evaluations.
_EVALUATIONS = 10
_PUBLISHED_UPDATES = 10  # per step, of all agents, SAC too

_Grouped = dict[str, dict[str, list[Curve]]]
_TwoCells = tuple[str, str]
_NONE: _TwoCells = ("-", "-")


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
        curves = run_reader.read_runs(there, smooth=_EVALUATIONS)
        parts = _results(curves, output)
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


def _results(curves: Sequence[Curve], output: pathlib.Path) -> list[str]:
    """Draws the figures; returns the tables."""
    published, grouped = _published_curves(curves), results.group(curves)
    ends = {
        (env, label): min(curve.x[-1] for curve in seeds)
        for env, by_label in grouped.items()
        for label, seeds in by_label.items()
    }
    final = lambda curve: _return_at(curve, ends[curve.env, curve.label])
    y = f"mean of the last {_EVALUATIONS} evaluations"
    figures.draw_curves(curves, output / "learning_curves.png", x="step", y=y, published=published)
    # A ladder compares at the same step; runs that have made none yet do not hold it up.
    begun = [curve for curve in curves if ends[curve.env, curve.label] > 0]
    first_ends = {
        curve.env: min(end for (env, _), end in ends.items() if env == curve.env and end > 0)
        for curve in begun
    }
    if ladders := ladder.ladders(begun, lambda curve: _return_at(curve, first_ends[curve.env])):
        theirs = ladder.published(ladders, first_ends)
        ladder.draw(ladders, theirs, output / "action_costs.png", steps=first_ends, y=y)
    try:
        over_seeds = {env: _over_seeds(by_label, final) for env, by_label in grouped.items()}
        over_tasks = _over_tasks(grouped)
    except ValueError as error:  # no rliable
        over_seeds, over_tasks = {}, [f"{error}"]
    return [_table(grouped, over_seeds, ends), *over_tasks]


def _published_curves(curves: Sequence[Curve]) -> dict[str, list[PublishedCurve]]:
    """By task, where all runs of it have the action cost of what was published."""
    costs: dict[str, set[float]] = {}
    for curve in curves:
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
    if curve.settings.get("init_from"):  # has learned from a dataset before
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
    over_seeds: dict[str, dict[str, _TwoCells]],
    ends: Mapping[tuple[str, str], float],
) -> str:
    """By task and method; the return of a seed is the mean of its last evaluations up to `ends`."""
    columns = [
        *("task", "method", "seeds", "steps", f"mean of the last {_EVALUATIONS} evaluations"),
        *("IQM over seeds", "median over seeds", "published", "least to most"),
    ]
    lines = [markdown.head(columns, texts=("task", "method"))]
    for env, by_label in grouped.items():
        for label, curves in by_label.items():
            end = ends[env, label]
            returns = np.array([_return_at(curve, end) for curve in curves])
            mean = _plus_minus(returns.mean(), float(results.standard_error(returns)))
            of_seeds = over_seeds.get(env, {}).get(label, _NONE)
            theirs = _in_words(_published_point(curves[0], end))
            cells = (env, label, len(curves), f"{end:.0f}", mean, *of_seeds, *theirs)
            lines.append(markdown.row(cells))
    counts = [len(curve.x) for one in grouped.values() for each in one.values() for curve in each]
    if min(counts) < _EVALUATIONS:
        lines += [
            "",
            f"Of runs with fewer than {_EVALUATIONS} evaluations all count, the one before "
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


def _over_tasks(grouped: _Grouped) -> list[str]:
    """Interquartile mean and median over tasks, if there are several that all methods share.

    Returns count at the steps that all seeds of these methods have made on a task; where some have
    made none, the task waits for them.
    """
    if len(grouped) < 2:
        return []
    labels, shared = results.shared_tasks(grouped)
    made = {
        env: min(curve.x[-1] for label in labels for curve in grouped[env][label]) for env in shared
    }
    begin = lambda env: max(curve.x[0] for label in labels for curve in grouped[env][label])
    ends = {env: end for env, end in made.items() if end > 0 and begin(env) <= end}
    final = lambda curve: _return_at(curve, ends[curve.env])
    kept = {env: {label: grouped[env][label] for label in labels} for env in ends}
    scores = results.normalized_final_returns(kept, final) if kept else {}
    if not scores or next(iter(scores.values())).shape[1] < 2:
        return []
    by_label: dict[str, dict[str, results.Aggregate]] = {}
    for one in results.aggregate(scores):
        by_label.setdefault(one.label, {})[one.statistic] = one
    steps = ", ".join(f"{env} {end:.0f}" for env, end in ends.items())
    others = [env for env in ends if not results.is_suite_task(env)]
    scale = "as a part of the largest return"
    if others:
        scale += f" ({', '.join(others)}: from the worst, 0, to the best, 1, of these runs)"
    lines = [
        f"Over tasks, with 95 % stratified bootstrap intervals, {scale}, up "
        f"to the steps that all runs of a task have reached ({steps}):",
        "",
        markdown.head(["method", "tasks", "seeds", "IQM", "median"], texts=("method",)),
    ]
    for label, found in by_label.items():
        iqm, median = found["IQM"], found["median"]
        intervals = (_interval(one, ".3f") for one in (iqm, median))
        lines.append(markdown.row((label, iqm.num_tasks, iqm.num_seeds, *intervals)))
    return ["\n".join(lines)]


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
