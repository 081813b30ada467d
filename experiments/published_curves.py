"""Learning curves that the paper's authors have published, to draw beside one's own."""

import csv
import functools
import pathlib
from typing import NamedTuple

import numpy as np

from qusac_jax.environments.names import executes_code, parse_name

_FILE = pathlib.Path(__file__).parent / "published" / "dmc_online.csv"
_NAMES = {"qusac": "ensemble_mean"}  # of their agents, where ours is called otherwise


class PublishedPoint(NamedTuple):
    """Returns over the seeds of one agent on one task, at one step."""

    mean: float
    standard_error: float
    least: float
    most: float


class PublishedCurve(NamedTuple):
    """Returns over the seeds of one agent on one task."""

    name: str  # of the method or preset here
    x: np.ndarray  # [T] environment steps
    mean: np.ndarray  # [T] over seeds, and so the others
    standard_error: np.ndarray  # [T]
    least: np.ndarray  # [T]
    most: np.ndarray  # [T]

    def at(self, step: float) -> PublishedPoint:
        """At a step, interpolated; NaN outside of what was published."""
        fields = (self.mean, self.standard_error, self.least, self.most)
        at = lambda y: float(np.interp(step, self.x, y, left=np.nan, right=np.nan))
        return PublishedPoint(*map(at, fields))


def curves(env: str, action_cost: float) -> list[PublishedCurve]:
    """What was published of a task with that action cost; empty if nothing was.

    Args:
        env: name of an environment.
        action_cost: ρ of the runs to compare with: returns with another one are others.
    """
    if executes_code(env):  # of the task's module, which only the run may ask for
        return []
    try:
        parsed = parse_name(env)
    except ValueError:  # of a run that was made elsewhere
        return []
    rows = [
        row
        for row in _rows()
        if row["env"] == f"{parsed.domain}-{parsed.task}"
        and float(row["action_cost"]) == action_cost
    ]
    agents = dict.fromkeys(row["agent"] for row in rows)
    return [_curve(agent, [row for row in rows if row["agent"] == agent]) for agent in agents]


def _curve(agent: str, rows: list[dict[str, str]]) -> PublishedCurve:
    column = lambda name: np.array([float(row[name]) for row in rows])
    name = _NAMES.get(agent, agent)
    columns = ("step", "mean", "standard_error", "least", "most")
    return PublishedCurve(name, *map(column, columns))


@functools.cache
def _rows() -> list[dict[str, str]]:
    with _FILE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
