"""Returns against the action cost, where a suite has several: where each method loses the task."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments import published_curves, results, run_reader, style
from experiments.run_reader import Curve


class Rung(NamedTuple):
    """One method on one task with one action cost."""

    cost: float  # rho
    mean: float  # over seeds
    standard_error: float  # NaN with one seed


# By task, and within a task by method and its settings; rungs by cost.
Ladders = dict[str, dict[str, list[Rung]]]


def ladders(curves: Sequence[Curve], final: Callable[[Curve], float]) -> Ladders:
    """Of the tasks that were run with several action costs.

    Args:
        curves: of all runs.
        final: the return of a seed that counts.
    """
    returns: dict[str, dict[str, dict[float, list[float]]]] = {}
    labels = run_reader.labels(curves, besides=("action_cost",))
    for curve, label in zip(curves, labels, strict=True):
        by_cost = returns.setdefault(curve.task, {}).setdefault(label, {})
        by_cost.setdefault(curve.action_cost, []).append(final(curve))
    return {
        task: {
            name: [_rung(cost, by_cost[cost]) for cost in sorted(by_cost)]
            for name, by_cost in sorted(by_name.items())
        }
        for task, by_name in sorted(returns.items())
        if len({cost for by_cost in by_name.values() for cost in by_cost}) > 1
    }


def published(found: Ladders, steps: Mapping[str, float]) -> Ladders:
    """The same tasks and costs as far as they were published, at the steps `[task]`."""
    theirs: Ladders = {}
    for task, by_name in found.items():
        costs = sorted({rung.cost for rungs in by_name.values() for rung in rungs})
        for cost in costs:
            for curve in published_curves.curves(task, cost):
                there = curve.at(steps[task])
                rung = Rung(cost, there.mean, there.standard_error)
                if np.isfinite(rung.mean):
                    theirs.setdefault(task, {}).setdefault(curve.name, []).append(rung)
    return theirs


@matplotlib.rc_context(style.RC)
def draw(
    ours: Ladders, theirs: Ladders, path: pathlib.Path, *, steps: Mapping[str, float], y: str
) -> None:
    """A panel for each task, with the costs evenly spaced; published results are dotted.

    Args:
        ours: at least one task.
        theirs: the published ones.
        path: of the PNG.
        steps: of each task, at which they are compared.
        y: name of the y axis.
    """
    figure = Figure((max(4.0 * len(ours), 5.5), 3.4), layout="constrained")
    panels = figure.subplots(1, len(ours), squeeze=False)[0]
    colors = style.colors(name for by_name in ours.values() for name in by_name)
    for panel, (task, by_name) in zip(panels, ours.items(), strict=True):
        costs = sorted({rung.cost for rungs in by_name.values() for rung in rungs})
        for name, rungs in by_name.items():
            x = [costs.index(rung.cost) for rung in rungs]
            mean = np.array([rung.mean for rung in rungs])
            error = np.nan_to_num([rung.standard_error for rung in rungs])
            panel.plot(x, mean, color=colors[name], marker="o", ms=4, lw=1.5)
            panel.fill_between(x, mean - error, mean + error, color=colors[name], alpha=0.15, lw=0)
        for name, rungs in theirs.get(task, {}).items():
            x = [costs.index(rung.cost) for rung in rungs]
            color = style.color(name)
            panel.plot(x, [rung.mean for rung in rungs], ":", color=color, lw=1.1, marker=".")
        panel.set_xticks(range(len(costs)), [f"{cost:g}" for cost in costs])
        panel.set_title(f"{style.text(task)}, {steps[task]:,.0f} steps")
        panel.set_xlabel("action cost")
    panels[0].set_ylabel(y)
    dotted = style.published_samples(name for by_name in theirs.values() for name in by_name)
    solid = [style.line_sample(style.text(name), color=colors[name]) for name in colors]
    style.legend(figure, [*solid, *dotted], where="upper")
    style.save(figure, path)


def _rung(cost: float, returns: Sequence[float]) -> Rung:
    values = np.array(returns)
    return Rung(cost, float(values.mean()), float(results.standard_error(values)))
