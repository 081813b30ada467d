"""Predicted values and their uncertainty beside the returns that came, as figures.

Axes: R seeds, N members, P points (states of episodes).
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import style


class Predictions(NamedTuple):
    """What was expected at states of episodes, such as their first ones, and what came of it."""

    q: np.ndarray  # [R, P] mean of the critics, with the entropy bonus that they were trained on
    std: np.ndarray  # [R, P] sqrt(U)
    discounted_return: np.ndarray  # [R, P] NaN if not known; offline runs cut it off at time limits


class Spreads(NamedTuple):
    """How members of the model and their critics differ, and what U says of it."""

    std: np.ndarray  # [R, P] sqrt(U)
    model: np.ndarray  # [R, P] standard deviation over members of the return in their models
    model_deviation: np.ndarray  # [R, N, P] of a member's return from the mean over members
    critic_deviation: np.ndarray  # [R, N, P] of its critics' value


@matplotlib.rc_context(style.RC)
def draw(
    predictions: Predictions,
    seeds: Sequence[int],
    path: pathlib.Path,
    spreads: Spreads | None = None,
    *,
    title: str,
    is_of_values: bool = True,
) -> pathlib.Path:
    """Expected against actual returns, and sqrt(U) against the error, a colour for each seed.

    Args:
        predictions: of the episodes; NaN is left out.
        seeds: R, for the legend.
        path: of the PNG.
        spreads: a second row for the members, if given.
        title: whose returns these are.
        is_of_values: whether U is a variance of values. If not, it says nothing of how large errors
            are, and no diagonal is drawn.
    """
    figure = Figure((8, 3.6 if spreads is None else 7.0), layout="constrained")
    panels = figure.subplots(1 if spreads is None else 2, 2, squeeze=False)
    _draw_predictions(panels[0], predictions, seeds)
    _finish_std(panels[0, 1], predictions.std, "values", is_of_values)
    if spreads is not None:
        _draw_spreads(panels[1], spreads)
        _finish_std(panels[1, 0], spreads.std, "members' models", is_of_values)
    handles = panels[0, 0].get_legend_handles_labels()[0]
    style.legend(figure, handles, where="upper", title=title)
    return style.save(figure, path)


def _draw_predictions(
    panels: Sequence[Axes], predictions: Predictions, seeds: Sequence[int]
) -> None:
    left, right = panels
    error = np.abs(predictions.q - predictions.discounted_return)
    for i, seed in enumerate(seeds):
        dots = {**_dots(i), "label": f"seed {seed}"}
        left.scatter(predictions.discounted_return[i], predictions.q[i], **dots)
        right.scatter(predictions.std[i], error[i], **dots)
    _draw_diagonal(left, predictions.q, predictions.discounted_return)
    left.set(xlabel="discounted return", ylabel="expected return Q", title="above: overestimated")
    right.set(ylabel="|Q - discounted return|")


def _draw_spreads(panels: Sequence[Axes], spreads: Spreads) -> None:
    left, right = panels
    for i in range(len(spreads.std)):
        left.scatter(spreads.std[i], spreads.model[i], **_dots(i))
        own, critic = spreads.model_deviation[i].ravel(), spreads.critic_deviation[i].ravel()
        right.scatter(own, critic, **{**_dots(i), "s": 8, "alpha": 0.5})
    _draw_diagonal(right, spreads.model_deviation)
    left.set(ylabel="std of returns over members")
    right.set(
        xlabel="return in its model - mean of models",
        ylabel="its critic - mean of critics",
        title="members' critics",
    )


def _finish_std(panel: Axes, std: np.ndarray, what: str, is_of_values: bool) -> None:
    """Says how the panel is read whose x axis is sqrt(U)."""
    if is_of_values:
        _draw_diagonal(panel, 0.0, std)
        panel.set(xlabel="sqrt(U)", title=f"{what}; above: overconfident")
    else:
        panel.set(xlabel="sqrt(U), which is not in units of values", title=what)


def _dots(index: int) -> dict[str, Any]:
    colors = list(style.COLORS.values())
    return {"s": 14, "color": colors[index % len(colors)], "alpha": 0.7}


def _draw_diagonal(panel: Axes, *values: np.ndarray | float) -> None:
    """Draws the diagonal from the smallest to the largest of the values."""
    flat = np.concatenate([np.ravel(one) for one in values])
    flat = flat[np.isfinite(flat)]
    if flat.size:
        ends = [flat.min(), max(flat.max(), flat.min() + 1e-9)]
        panel.plot(ends, ends, color="0.6", lw=1, zorder=0)
