"""Predicted values and their uncertainty beside the returns that came.

Axes: R seeds, E episodes.
"""

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments import style


class Predictions(NamedTuple):
    """What was expected of episodes at their first observation, and what came."""

    q: np.ndarray  # [R, E] mean of the critics, with the entropy bonus that they were trained on
    std: np.ndarray  # [R, E] sqrt(U)
    discounted_return: np.ndarray  # [R, E]; a time limit cuts off what would have come after it


@matplotlib.rc_context(style.RC)
def draw(predictions: Predictions, seeds: Sequence[int], path: pathlib.Path) -> pathlib.Path:
    """Expected against actual returns, and sqrt(U) against the error, a colour for each seed.

    Args:
        predictions: of the episodes.
        seeds: R, for the legend.
        path: of the PNG.
    """
    figure = Figure((8, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    colors = list(style.COLORS.values())
    error = np.abs(predictions.q - predictions.discounted_return)
    for i, seed in enumerate(seeds):
        dots = {"s": 14, "color": colors[i % len(colors)], "alpha": 0.7, "label": f"seed {seed}"}
        left.scatter(predictions.discounted_return[i], predictions.q[i], **dots)
        right.scatter(predictions.std[i], error[i], **dots)
    low = min(predictions.q.min(), predictions.discounted_return.min())
    high = max(predictions.q.max(), predictions.discounted_return.max())
    left.plot([low, high], [low, high], color="0.6", lw=1, zorder=0)
    left.set(xlabel="discounted return", ylabel="expected return Q", title="above: overestimated")
    widest = max(predictions.std.max(), 1e-9)
    right.plot([0, widest], [0, widest], color="0.6", lw=1, zorder=0)
    right.set(xlabel="sqrt(U)", ylabel="|Q - discounted return|", title="above: overconfident")
    style.legend(figure, left.get_legend_handles_labels()[0], where="upper")
    figure.savefig(path)
    return path
