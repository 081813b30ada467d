"""Heat maps in rows and columns, each column a quantity on one colour scale.

Axes: H, W cells of a map.
"""

import types
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import style

# For matplotlib.rc_context, around all that draws or saves.
RC: Any = types.MappingProxyType(
    {**style.RC, "axes.grid": False, "axes.spines.right": True, "axes.spines.top": True}
)


class Column(NamedTuple):
    """A quantity and its maps, from the first row to the last."""

    name: str
    maps: Sequence[np.ndarray]  # [H, W] each; NaN where there is nothing


def draw(
    columns: Sequence[Column],
    labels: Sequence[str],
    *,
    panel: tuple[float, float],
    title: str,
    **image: Any,
) -> tuple[Figure, np.ndarray]:
    """A panel for each map; panels of a column can be compared by their colours.

    Args:
        columns: of the figure.
        labels: of the rows.
        panel: width and height of one in inches.
        title: of the figure.
        image: keyword arguments of matplotlib's `imshow`.

    Returns:
        The figure and its axes `[rows, columns]`.
    """
    width, height = panel
    figure = Figure(
        (width * len(columns), height * len(labels) + 1.1),
        layout="constrained",
    )
    axes = figure.subplots(len(labels), len(columns), squeeze=False)
    for column, panels in zip(columns, axes.T, strict=True):
        low, high = np.nanmin(column.maps), np.nanmax(column.maps)
        drawn = [
            _draw_panel(axis, values, vmin=low, vmax=high, **image)
            for axis, values in zip(panels, column.maps, strict=True)
        ]
        panels[0].set_title(column.name, fontsize=10)
        figure.colorbar(
            drawn[0],
            ax=list(panels),
            location="bottom",
            shrink=0.9,
            aspect=25,
            pad=0.05 / len(labels),  # of the height of all rows
        )
    for axis, label in zip(axes[:, 0], labels, strict=True):
        axis.set_ylabel(label)
    figure.suptitle(title)
    return figure, axes


def _draw_panel(axis: Axes, values: np.ndarray, **image: Any) -> Any:
    axis.set_facecolor("0.85")
    return axis.imshow(values, cmap="viridis", **image)
