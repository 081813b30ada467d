"""Learning curves from the directories of deep runs.

Such a directory holds config.json and metrics.csv, in which a row is one evaluation of one seed.
Axis: T points on the x axis.
"""

import os
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import run_settings
from experiments.files import plain, read_columns, read_json, warn
from experiments.run_kind import is_tabular

_REQUIRED_COLUMNS = ("step", "seed", "eval_return", "eval_task_return")
_REQUIRED_KEYS = ("env", "method", "preset")
_LARGEST = 1e100  # what is beyond has no square, so no standard error, and cannot be drawn


class NoCurveError(ValueError):
    """There are no runs, or none with an evaluation; nothing is wrong with them."""


class Curve(NamedTuple):
    """The evaluations of one seed of one run."""

    task: str  # what runs are compared on: the environment, or the dataset of an offline run
    env: str
    label: str  # name, and the settings that tell it from others of that name on the same task
    run: pathlib.Path
    seed: int
    x: np.ndarray  # [T] increasing
    y: np.ndarray  # [T]
    final_step: int  # of the last evaluation
    final_return: float  # its mean over episodes, with action cost
    final_task_return: float  # without
    final_y: float  # y of that evaluation, the last one that has a y
    name: str  # preset, or method where the preset is qusac
    settings: dict[str, Any]  # all that makes runs of one task and name different things

    @property
    def is_offline(self) -> bool:
        """Whether it learned from a dataset alone."""
        return "dataset" in self.settings

    @property
    def action_cost(self) -> float:
        """That of the run; 0 where there is none."""
        return float(self.settings.get("action_cost") or 0.0)


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
    found, problems = [], []
    curves: list[Curve] = []
    for path in paths:
        try:
            if (path / "config.json").is_file():
                found.append(path)
                curves += _read_run(path, x, y, smooth)
        except (ValueError, OSError) as error:
            problems.append(f"runs: {error}")
    if not curves:
        if problems:
            raise ValueError("; ".join(problems))
        what = "no evaluation" if found else "no run"
        raise NoCurveError(
            f"runs: found {what} in {', '.join(map(str, paths)) or 'no directories'}; name "
            "directories with config.json and metrics.csv, for example runs/*"
        )
    for problem in problems:
        warn(problem)
    for env in sorted({curve.env for curve in curves}):
        kinds = {curve.is_offline for curve in curves if curve.env == env}
        if x == "step" and len(kinds) > 1:
            warn(
                f"runs: of {env} some are offline, whose steps are gradient updates, and some "
                "online, whose steps are those of the environment; draw them apart"
            )
    named = zip(curves, labels(curves), strict=True)
    return _without_repeats([curve._replace(label=label) for curve, label in named])


def by_kind(curves: Iterable[Curve]) -> dict[tuple[str, str], list[Curve]]:
    """Curves of one task and name together, in the order that they are in."""
    kinds: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        kinds.setdefault((curve.task, curve.name), []).append(curve)
    return kinds


def labels(curves: Sequence[Curve], *, besides: Collection[str] = ()) -> list[str]:
    """What each is called: its name, and what tells it from others of that name and task.

    Args:
        curves: of any tasks.
        besides: settings that are left out, as something else shows them.
    """
    differences = {
        kind: [
            name
            for name in run_settings.differing([curve.settings for curve in alike])
            if name not in besides
        ]
        for kind, alike in by_kind(curves).items()
    }
    return [
        " ".join(
            [
                curve.name,
                *run_settings.describe(curve.settings, differences[curve.task, curve.name]),
            ]
        )
        for curve in curves
    ]


def _read_config(path: pathlib.Path) -> tuple[dict[str, Any], str]:
    """config.json of a deep run, and what the run is called.

    Raises:
        ValueError: if it cannot be read, or lacks what a curve needs.
    """
    config = read_json(path / "config.json")
    if is_tabular(config):
        what = f"{path} is a run of experiments.tabular, whose curve is regret.png"
        raise ValueError(f"{what}; leave it out")
    strings = [config.get(key) for key in _REQUIRED_KEYS]
    pairs = zip(_REQUIRED_KEYS, strings, strict=True)
    missing = [key for key, value in pairs if not (isinstance(value, str) and value.strip())]
    if missing:
        what = f"{path / 'config.json'} has no {', '.join(missing)}"
        raise ValueError(f"{what}; leave this run out")
    cost = config.get("action_cost") or 0.0
    if not isinstance(cost, int | float):
        what = f"{path / 'config.json'}: action_cost is {cost!r}, which is no number"
        raise ValueError(f"{what}; leave this run out")
    fields = config.get("config")
    critic_data = fields.get("critic_data") if isinstance(fields, dict) else None
    if not isinstance(critic_data, str | None):
        what = f"{path / 'config.json'}: critic_data is {critic_data!r}, which is no name"
        raise ValueError(f"{what}; leave this run out")
    return config, plain(run_settings.name_of(config["preset"], config["method"], critic_data))


def _read_run(path: pathlib.Path, x: str, y: str, smooth: int) -> list[Curve]:
    config, name = _read_config(path)
    columns = read_columns(path / "metrics.csv", {x, y, *_REQUIRED_COLUMNS})
    seeds = columns["seed"]
    if problem := what_is_missing(path, columns):
        warn(f"runs: {problem}")
    if not np.all(np.isfinite(seeds) & (seeds == np.round(seeds)) & (np.abs(seeds) < 2**53)):
        what = f"{path / 'metrics.csv'} has seeds that are no integers"
        raise ValueError(f"{what}; the file is damaged, leave this run out")
    too_large = np.zeros(len(seeds), bool)
    for column in (x, y, "eval_return", "eval_task_return"):
        too_large |= np.abs(columns[column]) > _LARGEST  # NaN, which is no evaluation, is not
    if too_large.any():
        warn(
            f"runs: {path / 'metrics.csv'} has infinite values, or some beyond {_LARGEST:g}, in "
            f"{too_large.sum()} of {len(seeds)} lines, which are left out"
        )
    kept = ~too_large & np.isfinite(columns[x]) & np.isfinite(columns[y])
    for column in (x, y):
        if len(seeds) and not np.isfinite(columns[column]).any():
            what = f"{path / 'metrics.csv'} has no finite value of {column}"
            raise ValueError(f"{what}; choose another column, or leave this run out")
    curves = []
    for seed in np.unique(seeds):
        rows = np.flatnonzero((seeds == seed) & kept)
        if not len(rows):
            continue
        rows = rows[np.argsort(columns["step"][rows], kind="stable")]
        last = _last_evaluation(columns, (seeds == seed) & ~too_large)
        y_values = _moving_average(columns[y][rows], smooth)
        # Columns other than the step may repeat: the latest evaluation at each value counts.
        positions, from_end = np.unique(columns[x][rows][::-1], return_index=True)
        curves.append(
            Curve(
                task=_task(config),
                env=plain(config["env"]),
                label=name,
                run=path,
                seed=int(seed),
                x=positions,
                y=y_values[::-1][from_end],
                final_step=int(columns["step"][last]),
                final_return=float(columns["eval_return"][last]),
                final_task_return=float(columns["eval_task_return"][last]),
                final_y=float(y_values[-1]),
                name=name,
                settings=run_settings.of_config(config),
            )
        )
    return curves


def _task(config: Mapping[str, Any]) -> str:
    data = config.get("dataset")
    if not isinstance(data, dict):
        return plain(config["env"])
    return plain(run_settings.dataset_name(str(data.get("dataset"))))


def what_is_missing(path: pathlib.Path, columns: Mapping[str, np.ndarray] | None = None) -> str:
    """What metrics.csv of a run lacks that was done once, in words; empty if it lacks nothing.

    Args:
        path: its directory.
        columns: of metrics.csv, `step` and `seed`, if they have been read.

    Raises:
        ValueError: if a file cannot be read.
    """
    if not (path / "summary.json").is_file():
        return ""
    summary = read_json(path / "summary.json")
    done, seeds = summary.get("steps"), summary.get("seeds")
    if not isinstance(done, int) or not isinstance(seeds, list):
        return ""
    seeds = [seed for seed in seeds if not isinstance(seed, list | dict)]
    if columns is None:
        columns = read_columns(path / "metrics.csv", _REQUIRED_COLUMNS)
    for seed in seeds:
        is_evaluated = (columns["seed"] == seed) & np.isfinite(columns["eval_return"])
        steps = columns["step"][is_evaluated & np.isfinite(columns["step"])]
        if not len(steps) or steps.max() < done:
            end = f"ends at step {int(steps.max())}" if len(steps) else "has no evaluation"
            return (
                f"{path / 'metrics.csv'} {end} of seed {seed}, and summary.json says {done}; put "
                "the file back, unless the run goes on from an earlier checkpoint"
            )
    return ""


def _last_evaluation(columns: Mapping[str, np.ndarray], rows: np.ndarray) -> int:
    """The row with the final return: that of the largest step among `rows`, a mask.

    Whatever is drawn, along whatever axis, the final return is the same.
    """
    is_evaluated = rows & np.isfinite(columns["eval_return"]) & np.isfinite(columns["step"])
    candidates = is_evaluated if is_evaluated.any() else rows
    return int(np.argmax(np.where(candidates, columns["step"], -np.inf)))


def _without_repeats(curves: list[Curve]) -> list[Curve]:
    kept: dict[tuple[str, str, int], Curve] = {}
    for curve in curves:
        key = (curve.task, curve.label, curve.seed)
        first = kept.setdefault(key, curve)
        if first is not curve:
            # Of a run and its unfinished copy, the finished one counts.
            longer, shorter = (
                (curve, first) if curve.final_step > first.final_step else (first, curve)
            )
            kept[key] = longer
            warn(
                f"runs: seed {curve.seed} of {curve.task} {curve.label} is in {longer.run} (step "
                f"{longer.final_step}) and {shorter.run} ({shorter.final_step}); the latter is "
                "left out"
            )
    return list(kept.values())


def _moving_average(values: np.ndarray, width: int) -> np.ndarray:
    """Mean of the last `width` values, of fewer at the start."""
    # Each window by itself: in differences of a running sum, one large value would cost the others
    # all their digits.
    width = min(width, len(values))
    first = [values[:end].mean() for end in range(1, width)]
    windows = np.lib.stride_tricks.sliding_window_view(values, width) if width else np.zeros((0, 1))
    return np.concatenate([first, windows.mean(axis=1)])
