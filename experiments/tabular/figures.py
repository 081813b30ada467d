"""Figures of the tabular experiments."""

import pathlib
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure

from experiments import heat_maps, results, style
from experiments.tabular.finished_runs import FinishedRun, published_means


class Snapshot(NamedTuple):
    """The agent's belief about its policy after some episodes."""

    episode: int
    policy: np.ndarray  # [S]
    visits: np.ndarray  # [S, A]
    mean_q: np.ndarray  # [S, A]
    variance: np.ndarray  # [S, A]
    uncertainty_reward: np.ndarray  # [S, A]


def _subplots(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    figure = Figure((width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


@matplotlib.rc_context(style.RC)
def draw_regret(runs: list[FinishedRun], path: pathlib.Path) -> pathlib.Path:
    """Total regret along the episodes, one line per seed and their mean."""
    figure, axes = _subplots(6, 4)
    for run in runs:
        color = style.COLORS[run.summary["method"]]
        axes.plot(run.total_regret.T, color=color, alpha=0.3, linewidth=0.8)
        axes.plot(run.total_regret.mean(0), color=color, label=run.summary["method"])
    length = runs[0].summary["length"]
    axes.set(
        xlabel="episode",
        ylabel="total regret",
        title=runs[0].summary["env"] + (f", L = {length}" if length else ""),
    )
    style.legend(figure, axes.get_legend_handles_labels()[0], where="upper")
    return style.save(figure, path)


@matplotlib.rc_context(style.RC)
def draw_deep_sea(runs: list[FinishedRun], published, path: pathlib.Path) -> pathlib.Path:
    """Learning time and total regret against L, as in the paper's DeepSea figure."""
    figure, (left, right) = _subplots(11, 4, columns=2)
    methods = list(dict.fromkeys(run.summary["method"] for run in runs))
    methods.sort(key=list(style.COLORS).index)
    lengths = sorted({run.summary["length"] for run in runs})
    width = 0.8 / len(methods)
    learning = published_means(published, "length", "learning_time")
    regret = published_means(published, "length", "total_regret")
    for i, method in enumerate(methods):
        color = style.COLORS[method]
        own = sorted(
            (run.summary for run in runs if run.summary["method"] == method),
            key=lambda summary: summary["length"],
        )
        times = [
            (summary["length"], np.mean(summary["learning_time"]))
            for summary in own
            if None not in summary["learning_time"]
        ]
        if times:
            left.plot(*np.transpose(times), "o-", color=color, label=method)
        place = np.array([lengths.index(summary["length"]) for summary in own])
        place = place + (i - (len(methods) - 1) / 2) * width
        totals = [summary["total_regret"] for summary in own]
        error = np.nan_to_num([results.standard_error(np.array(total)) for total in totals])
        right.bar(place, np.mean(totals, 1), width, color=color, yerr=error, label=method)
        if method in learning:
            left.plot(*learning[method], "x--", color=color, alpha=0.6)
        for length, mean in np.transpose(regret.get(method, np.empty((2, 0)))):
            if length in [summary["length"] for summary in own]:
                at = place[[summary["length"] for summary in own].index(length)]
                right.plot(at, mean, "kx", markersize=5)
    if published:
        left.plot([], [], "kx--", alpha=0.6, label="published")
    left.set(xlabel="L", ylabel="learning time (episodes)", title="learning time")
    right.set(xlabel="L", ylabel="total regret", title="total regret")
    left.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    right.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    handles = right.get_legend_handles_labels()[0]
    style.legend(figure, [*handles, *(left.lines[-1:] if published else [])], where="upper")
    return style.save(figure, path)


@matplotlib.rc_context(style.RC)
def draw_rooms(runs: list[FinishedRun], published, path: pathlib.Path) -> pathlib.Path:
    """Total regret along the episodes with standard errors, as in the paper's 7-room figure."""
    figure, axes = _subplots(6.5, 4.5)
    curves = published_means(published, "episode", "total_regret")
    for run in sorted(runs, key=lambda run: list(style.COLORS).index(run.summary["method"])):
        method, total = run.summary["method"], run.total_regret
        color, episode = style.COLORS[method], np.arange(total.shape[1])
        mean = total.mean(0)
        axes.plot(episode, mean, color=color, label=method)
        if len(total) > 1:
            error = results.standard_error(total)
            axes.fill_between(episode, mean - error, mean + error, color=color, alpha=0.2)
        if method in curves:
            axes.plot(*curves[method], "--", color=color, alpha=0.7)
    if published:
        axes.plot([], [], "k--", alpha=0.7, label="published")
    axes.set(xlabel="episode", ylabel="total regret", title=runs[0].summary["env"])
    style.legend(figure, axes.get_legend_handles_labels()[0], where="upper")
    return style.save(figure, path)


@matplotlib.rc_context(heat_maps.RC)
def draw_snapshots(
    environment, snapshots: list[Snapshot], path: pathlib.Path, method: str
) -> pathlib.Path:
    """Heat maps over the grid, one row of panels per snapshot and one color scale per column."""
    rows, columns = environment.cells.T
    shape = (rows.max() + 1, columns.max() + 1)
    value = "Q of a sampled MDP" if method == "psrl" else "mean Q"
    names = (value, "sqrt(U)", "uncertainty reward", "log10(1 + visits)")
    maps: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for snapshot in snapshots:
        state = np.arange(len(snapshot.policy))
        quantities = (
            snapshot.mean_q[state, snapshot.policy],
            np.sqrt(np.maximum(snapshot.variance[state, snapshot.policy], 0)),
            snapshot.uncertainty_reward[state, snapshot.policy],
            np.log10(1 + snapshot.visits.sum(-1)),
        )
        for name, values in zip(names, quantities, strict=True):
            grid = np.full(shape, np.nan)
            grid[rows, columns] = values
            maps[name].append(grid)
    height, width = shape
    figure, axes = heat_maps.draw(
        [heat_maps.Column(name, maps[name]) for name in names],
        [f"episode {snapshot.episode}" for snapshot in snapshots],
        panel=(max(2.5, 0.13 * width + 0.4), max(1.9, 0.13 * height + 0.4)),
        title=f"{environment.name}, {method}",
    )
    start = np.argmax(environment.start)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.plot(columns[start], rows[start], "w.", markersize=5)
    return style.save(figure, path)
