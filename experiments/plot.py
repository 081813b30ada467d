"""Learning curves and aggregates of finished or running experiments.

    python -m experiments.plot runs/* [--output=DIR] [--x=step] [--y=eval_return] [--smooth=k]

Runs are grouped by task, which offline is the dataset, and by method (the preset where it is not
`qusac`). One panel per task shows the mean and the standard error over seeds: colors are methods,
lines are settings. Where several tasks are there, a second figure shows the median and the
interquartile mean of the final returns over tasks, with 95 % stratified bootstrap intervals
(rliable). For that figure the returns of control suite tasks are divided by 1000, those of other
tasks mapped to [0, 1] between the worst and the best run that was read.

Writes learning_curves.png and .csv, aggregate.png and .csv, and prints a table.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags

from experiments import cli, figures, files, markdown, path_flag, results, run_reader
from experiments.files import plain
from experiments.run_reader import Curve


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    path_flag.define_output(values, ".", "folder to write to")
    flags.DEFINE_string("x", "step", "column of metrics.csv for the x axis", **define)
    flags.DEFINE_string("y", "eval_return", "column of metrics.csv to draw", **define)
    flags.DEFINE_integer("smooth", 1, "evaluations in the moving average", **define)
    return values


def run(options: flags.FlagValues, run_directories: Sequence[str]) -> None:
    """Draws, writes and prints everything."""
    x, y = options.x, options.y
    curves = run_reader.read_runs(run_directories, x=x, y=y, smooth=options.smooth)
    output = pathlib.Path(options.output)
    for name in ("learning_curves", "aggregate"):
        files.check_writable(output / f"{name}.png")
        files.check_writable(output / f"{name}.csv")
    grouped = results.group(curves)
    summaries = figures.draw_curves(curves, output / "learning_curves.png", x=x, y=y)
    files.write_csv(
        output / "learning_curves.csv",
        ("task", "method", "num_seeds", x, "mean", "standard_error"),
        [
            (s.task, s.label, s.num_seeds, *point)
            for s in summaries
            for point in zip(s.x, s.mean, s.standard_error, strict=True)
        ],
    )
    print(table(grouped, y))
    scores = results.normalized_final_returns(grouped) if len(grouped) > 1 else {}
    num_tasks = next(iter(scores.values())).shape[1] if scores else 0
    if num_tasks > 1:
        _warn_of_other_steps(grouped)
        aggregates = results.aggregate(scores)
        names = {curve.label: curve.name for curve in curves}
        figures.draw_aggregates(aggregates, names, output / "aggregate.png")
        files.write_csv(output / "aggregate.csv", results.Aggregate._fields, aggregates)
        return
    if len(grouped) > 1:
        which = "one task" if num_tasks else "no task"
        print(f"\nNo aggregate over tasks: {which} was run with every method.")
    if (output / "aggregate.csv").exists():
        files.warn(f"{output}: aggregate.csv and aggregate.png are those of an earlier call")


def _warn_of_other_steps(grouped: dict[str, dict[str, list[Curve]]]) -> None:
    for task, by_label in grouped.items():
        steps = sorted({curve.final_step for curves in by_label.values() for curve in curves})
        if len(steps) > 1:
            files.warn(
                f"runs: those of {task} end at {steps[0]} to {steps[-1]} steps, and the aggregate "
                "compares their ends; `experiments.suite --report` compares at the same step"
            )


def table(grouped: dict[str, dict[str, list[Curve]]], y: str = "eval_return") -> str:
    """Markdown table of final returns, those of the last evaluations: mean ± standard error.

    Args:
        grouped: as `results.group` gives them.
        y: what is drawn; if it is no return, its last values, smoothed as drawn, have a column.
    """
    is_more = y not in ("eval_return", "eval_task_return")
    columns = ["task", "method", "seeds", "steps", "final return", "without action cost"]
    lines = [markdown.head(columns + [plain(y)] * is_more, texts=("task", "method"))]
    for task, by_label in grouped.items():
        for label, curves in by_label.items():
            ends = sorted({curve.final_step for curve in curves})
            steps = f"{ends[0]}" if len(ends) == 1 else f"{ends[0]} to {ends[-1]}"
            with_cost = _mean_and_error([curve.final_return for curve in curves])
            without = _mean_and_error([curve.final_task_return for curve in curves])
            cells = [task, label, len(curves), steps, with_cost, without]
            cells += [_mean_and_error([curve.final_y for curve in curves])] * is_more
            lines.append(markdown.row(cells))
    return "\n".join(lines)


def _mean_and_error(values: list[float]) -> str:
    error = results.standard_error(np.array(values))
    return results.plus_minus(float(np.mean(values)), float(error))


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and draws; returns the exit code."""
    what = "run directories, for example runs/*"
    return cli.run_with(run, make_flags(), argv, __doc__, positional=what)


if __name__ == "__main__":
    sys.exit(main())
