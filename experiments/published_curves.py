"""Learning curves that the paper's authors have published, to draw beside one's own."""

import csv
import functools
import pathlib
from typing import NamedTuple

import numpy as np

from qusac_jax.environments.names import parse_name

_FILE = pathlib.Path(__file__).parent / "published" / "dmc_online.csv"
_NAMES = {"qusac": "ensemble_mean"}  # of their agents, where ours is called otherwise


class PublishedCurve(NamedTuple):
    """Mean return over seeds of one agent on one task."""

    name: str  # of the method or preset here
    x: np.ndarray  # [T] environment steps
    mean: np.ndarray  # [T]
    standard_error: np.ndarray  # [T]

    def at(self, step: float) -> tuple[float, float]:
        """Mean and standard error at the last published step up to this one; NaN before the first
        and where the next one would have come after the last.
        """
        place = int(np.searchsorted(self.x, step, side="right")) - 1
        if place < 0 or step > self.x[-1] + np.diff(self.x).max(initial=0.0):
            return float("nan"), float("nan")
        return float(self.mean[place]), float(self.standard_error[place])


def curves(env: str, action_cost: float) -> list[PublishedCurve]:
    """What was published of a task with that action cost; empty if nothing was.

    Args:
        env: name of an environment.
        action_cost: ρ of the runs to compare with: returns with another one are others.
    """
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
    return PublishedCurve(name, column("step"), column("mean"), column("standard_error"))


@functools.cache
def _rows() -> list[dict[str, str]]:
    with _FILE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
