"""Learning curves and aggregates of finished or running experiments.

    python -m experiments.plot runs/* [--output=DIR] [--x=step] [--y=eval_return] [--smooth=k]

Runs are grouped by task and by method (the preset where it is not `qusac`). One panel per task
shows the mean and the standard error over seeds. Where several tasks are there, a second figure
shows the median and the interquartile mean of the final returns over tasks, with 95 % stratified
bootstrap intervals (rliable). For that figure the returns of control suite tasks are divided by
1000, those of other tasks mapped to [0, 1] between the worst and the best run that was read.

Writes learning_curves.png and .csv, aggregate.png and .csv, and prints a table.
"""

import argparse
import csv
import os
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from experiments import results

# Okabe & Ito's colours, told apart by nearly everybody.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LINES = ("-", "--", ":", "-.")
# The same method has the same colour in every figure, whatever it is compared with.
_KNOWN = ("upper_bound", "mbpo", "ensemble_mean", "ensemble_var", "pombu", "exact_ube", "sac")


def plot_learning_curves(
    run_directories: Iterable[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    x: str = "step",
    y: str = "eval_return",
    smooth: int = 1,
) -> None:
    """Draws the learning curves of runs, one panel per task, into a PNG.

    Args:
        run_directories: directories with config.json and metrics.csv; others are passed over.
        path: of the picture to write.
        x: the column of metrics.csv for the x axis.
        y: the column to draw.
        smooth: number of evaluations in the moving average, >= 1.

    Raises:
        ValueError: if there is nothing to draw, or a file is not as it should be.
    """
    curves = results.read_runs(run_directories, x=x, y=y, smooth=smooth)
    _draw_curves(results.group(curves), pathlib.Path(path), x, y)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.plot", description="Learning curves and aggregates of runs."
    )
    parser.add_argument("runs", nargs="+", help="run directories, for example runs/*")
    parser.add_argument("--output", default=".", help="folder to write to")
    parser.add_argument("--x", default="step", help="column of metrics.csv for the x axis")
    parser.add_argument("--y", default="eval_return", help="column of metrics.csv to draw")
    parser.add_argument("--smooth", type=int, default=1, help="width of the moving average")
    options = parser.parse_args(arguments)
    try:
        _plot(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _plot(options: argparse.Namespace) -> None:
    curves = results.read_runs(options.runs, x=options.x, y=options.y, smooth=options.smooth)
    grouped = results.group(curves)
    output = pathlib.Path(options.output)
    output.mkdir(parents=True, exist_ok=True)
    summaries = _draw_curves(grouped, output / "learning_curves.png", options.x, options.y)
    _write_csv(
        output / "learning_curves.csv",
        ("env", "method", "num_seeds", options.x, "mean", "standard_error"),
        [
            (s.env, s.label, s.num_seeds, *point)
            for s in summaries
            for point in zip(s.x, s.mean, s.standard_error, strict=True)
        ],
    )
    print(table(grouped))
    if len(grouped) > 1:
        scores = results.normalized_final_returns(grouped)
        if not scores:
            print("\nNo aggregate over tasks: no task was run with every method.")
            return
        aggregates = results.aggregate(scores)
        _draw_aggregates(aggregates, output / "aggregate.png")
        _write_csv(output / "aggregate.csv", results.Aggregate._fields, aggregates)


def table(grouped: dict[str, dict[str, list[results.Curve]]]) -> str:
    """Markdown table of final returns: mean ± standard error of the last evaluations."""
    lines = [
        "| env | method | seeds | steps | final return | without action cost |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for env, by_label in grouped.items():
        for label, curves in by_label.items():
            ends = sorted({int(curve.x[-1]) for curve in curves})
            steps = f"{ends[0]}" if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
            with_cost = _mean_and_error([curve.final_return for curve in curves])
            without = _mean_and_error([curve.final_task_return for curve in curves])
            lines.append(f"| {env} | {label} | {len(curves)} | {steps} | {with_cost} | {without} |")
    return "\n".join(lines)


def _mean_and_error(values: list[float]) -> str:
    error = results.standard_error(np.array(values))
    return f"{np.mean(values):.1f}" + ("" if np.isnan(error) else f" ± {error:.1f}")


def _draw_curves(
    grouped: dict[str, dict[str, list[results.Curve]]], path: pathlib.Path, x: str, y: str
) -> list[results.Summary]:
    summaries = {
        env: [results.summarize(curves) for curves in by_label.values()]
        for env, by_label in grouped.items()
    }
    styles = _styles([s.label for per_env in summaries.values() for s in per_env])
    num_columns = min(len(grouped), 3)
    num_rows = -(-len(grouped) // num_columns)
    with matplotlib.rc_context(_style()):
        figure = Figure((max(4.0 * num_columns, 5.5), 3.0 * num_rows + 0.6), layout="constrained")
        panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for panel, (env, per_env) in zip(panels, summaries.items(), strict=False):
            _draw_panel(panel, env, per_env, styles, x)
        for panel in panels[len(summaries) :]:
            panel.set_visible(False)
        figure.supylabel(y.replace("_", " "), fontsize=10)
        handles = {
            text: handle
            for panel in figure.axes
            for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        ordered = [label for label in styles if label in handles]
        # A legend wider than its figure is cut off: about this many inches per entry.
        entry = 0.7 + 0.08 * max(map(len, ordered))
        figure.legend(
            [handles[label] for label in ordered],
            ordered,
            loc="outside lower center",
            ncols=min(len(ordered), max(1, int(figure.get_figwidth() / entry))),
        )
        figure.savefig(path)
    return [summary for per_env in summaries.values() for summary in per_env]


def _draw_panel(
    panel: Axes,
    env: str,
    summaries: list[results.Summary],
    styles: dict[str, tuple[str, str]],
    x: str,
) -> None:
    for summary in summaries:
        color, line = styles[summary.label]
        marker = "o" if len(summary.x) == 1 else None
        panel.plot(
            summary.x, summary.mean, line, color=color, marker=marker, lw=1.6, label=summary.label
        )
        if summary.num_seeds > 1:
            low = summary.mean - summary.standard_error
            high = summary.mean + summary.standard_error
            panel.fill_between(summary.x, low, high, color=color, alpha=0.2, lw=0)
    counts = sorted({summary.num_seeds for summary in summaries})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    panel.set_title(f"{env} ({seeds} seed{'s' if seeds != '1' else ''})")
    panel.set_xlabel(x.replace("_", " "))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_aggregates(aggregates: list[results.Aggregate], path: pathlib.Path) -> None:
    labels = list(dict.fromkeys(item.label for item in aggregates))
    styles = _styles(labels)
    labels = [label for label in styles if label in labels]
    statistics = list(dict.fromkeys(item.statistic for item in aggregates))
    with matplotlib.rc_context({**_style(), "axes.grid.axis": "x"}):
        figure = Figure((4.2 * len(statistics), 0.45 * len(labels) + 1.4), layout="constrained")
        panels = figure.subplots(1, len(statistics), sharey=True, squeeze=False)[0]
        for panel, statistic in zip(panels, statistics, strict=True):
            for item in aggregates:
                if item.statistic == statistic:
                    row, color = labels.index(item.label), styles[item.label][0]
                    panel.barh(
                        row, item.high - item.low, 0.5, left=item.low, color=color, alpha=0.35
                    )
                    panel.plot([item.value] * 2, [row - 0.25, row + 0.25], color=color, lw=2.5)
            panel.use_sticky_edges = False  # a margin beside the bars too
            panel.autoscale_view()
            panel.set_title(statistic)
            panel.set_yticks(range(len(labels)), labels)
            panel.set_ylim(len(labels) - 0.5, -0.5)
        tasks = aggregates[0].num_tasks
        figure.supxlabel(f"normalized final return over {tasks} tasks, 95 % interval", fontsize=10)
        figure.savefig(path)


def _style() -> Any:
    return {
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 11,
        "font.size": 10,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "savefig.dpi": 150,
    }


def _styles(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Colour by method and line by settings, known methods first and always in the same colour."""
    by_method: dict[str, list[str]] = {}
    for label in sorted(set(labels)):
        by_method.setdefault(label.split()[0], []).append(label)
    known = dict(zip(_KNOWN, _COLORS, strict=True))
    free = [color for method, color in known.items() if method not in by_method] or _COLORS
    others = [method for method in by_method if method not in known]
    places = {method: (color, 0) for method, color in known.items()}
    places |= {method: (free[i % len(free)], i // len(free)) for i, method in enumerate(others)}
    return {
        label: (color, _LINES[(first + i) % len(_LINES)])
        for method, (color, first) in places.items()
        for i, label in enumerate(by_method.get(method, []))
    }


def _write_csv(path: pathlib.Path, header: Sequence[str], rows: Iterable[Sequence]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


if __name__ == "__main__":
    main()
