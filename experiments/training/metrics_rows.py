"""What an evaluation leaves behind in metrics.csv.

Axis: R seeds.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from experiments.evaluation import Evaluation

# Of the last update, in every row of metrics.csv, also in those before the first update.
_UPDATE_COLUMNS = ("actor_loss", "critic_loss", "unet_loss", "local_uncertainty")

Row = dict[str, float]


class Begun(NamedTuple):
    """An evaluation whose episodes may not be over, and what the run was when they began."""

    step: int
    episodes: Future[Evaluation]
    values: dict[str, np.ndarray]  # columns of metrics.csv beside the returns, [R] each, in order
    update: dict[str, np.ndarray]  # metrics of the last update, [R] each; empty before the first
    rate: float  # steps per second and seed since the evaluation before
    learning_rate: float | None  # learning steps per second, None before the first
    seconds_left: float | None  # until the run ends; None if that is not known


def rows(
    begun: Begun, seeds: Sequence[int], episodes: Evaluation, about: dict[str, np.ndarray]
) -> list[Row]:
    """A row of metrics.csv for each seed.

    Args:
        begun: the evaluation.
        seeds: R.
        episodes: its result.
        about: columns of what the episodes say beside their returns, `[R]` each.
    """
    nothing = np.full(len(seeds), np.nan)
    columns = {
        "step": np.full(len(seeds), begun.step),
        "seed": np.asarray(seeds),
        "eval_return": episodes.episode_return.mean(1),
        "eval_task_return": episodes.episode_task_return.mean(1),
        "eval_return_min": episodes.episode_return.min(1),
        "eval_return_max": episodes.episode_return.max(1),
        **about,
        **begun.values,
        **{name: begun.update.get(name, nothing) for name in _UPDATE_COLUMNS},
    }
    return [{name: float(column[i]) for name, column in columns.items()} for i in range(len(seeds))]
