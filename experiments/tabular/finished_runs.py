"""What `experiments.tabular` has written, and what was published, as figures need it.

Axes: R seeds, E episodes, P places along an axis.
"""

import csv
import pathlib
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from experiments import files


class FinishedRun(NamedTuple):
    """One directory with metrics.csv and summary.json."""

    summary: dict[str, Any]
    total_regret: np.ndarray  # [R, E] cumulative


def read(workdirs: Iterable[pathlib.Path]) -> list[FinishedRun]:
    """The finished runs in the directories.

    Raises:
        ValueError: if their files are missing or damaged.
    """
    runs = []
    for path in workdirs:
        summary = files.read_json(path / "summary.json")
        total = files.read_columns(path / "metrics.csv", ["total_regret"])["total_regret"]
        num_seeds, num_episodes = summary.get("num_seeds"), summary.get("num_episodes")
        if (
            not isinstance(num_seeds, int)
            or not isinstance(num_episodes, int)
            or num_seeds < 1
            or len(total) != num_seeds * num_episodes
        ):
            raise ValueError(
                f"{path}: summary.json has {num_episodes!r} episodes of {num_seeds!r} seeds, which "
                f"do not go with the {len(total)} lines of metrics.csv; repeat the run's command, "
                "which writes them anew, or leave this run out"
            )
        runs.append(FinishedRun(summary, total.reshape(num_seeds, -1)))
    return runs


def read_published(path: str, axis: str) -> list[dict[str, str]]:
    """Rows of a CSV with the columns method, total_regret, `axis` and perhaps learning_time.

    Raises:
        ValueError: if it is no such file, naming the line and column.
    """
    try:
        # Spreadsheets put a byte-order mark first.
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"published must be a CSV, but {path} cannot be read: {error}") from error
    names = set(rows[0]) if rows else set()
    wanted = {"method", "total_regret", axis}
    if not wanted <= names:
        raise ValueError(
            f"published must be a CSV with columns {', '.join(sorted(wanted))}, got "
            f"{sorted(map(str, names))} in {path}"
        )
    for number, row in enumerate(rows, 2):
        if not row["method"]:
            raise ValueError(f"published: {path}, line {number} names no method")
        for field, parse in ((axis, int), ("total_regret", float), ("learning_time", float)):
            value = row.get(field)
            if field == "learning_time" and not value:
                continue  # never learned
            try:
                parse(value or "")
            except ValueError as error:
                raise ValueError(
                    f"published: {path}, line {number}: {field} is {value!r}, which is no number"
                ) from error
    return rows


def published_means(
    rows: Iterable[dict[str, str]] | None, axis: str, field: str
) -> dict[str, np.ndarray]:
    """By method, places along the axis and means over seeds there `[2, P]`.

    Places where a value is missing are left out.
    """
    groups = defaultdict(list)
    for row in rows or []:
        if axis in row and row.get(field, "") is not None:
            groups[row["method"], int(row[axis])].append(row.get(field, ""))
    curves = defaultdict(list)
    for (method, place), values in sorted(groups.items()):
        if all(values):
            curves[method].append((place, np.mean([float(value) for value in values])))
    return {method: np.transpose(curve) for method, curve in curves.items()}
