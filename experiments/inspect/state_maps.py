"""Q, sqrt(U) and visits over the states of tasks with few state variables.

Axes: B batch, O observation size, H, W cells of a map, as many along both.
"""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import matplotlib
import numpy as np

from experiments import heat_maps, style
from qusac_jax import qusac

MOST_VARIABLES = 3
_MARGIN = 0.05  # of the data's range, on each side
_ON_CIRCLE = 1e-3


class Plane(NamedTuple):
    """Two coordinates of states, and the observation of each point."""

    names: tuple[str, str]
    low: np.ndarray  # [2]
    high: np.ndarray  # [2]
    project: Callable[[np.ndarray], np.ndarray]  # observations [B, O] -> [B, 2]
    observe: Callable[[np.ndarray], np.ndarray]  # [B, 2] -> [B, O]
    note: str = ""  # what is held fixed


class Maps(NamedTuple):
    """What is drawn of one checkpoint; maps `[H, W]`, the second coordinate first."""

    q: np.ndarray
    std: np.ndarray  # sqrt(U)
    visits: np.ndarray  # transitions of D


def plane_of(observations: np.ndarray) -> Plane | None:
    """The plane of observations `[B, O]`; None if there are too many variables.

    Cosine, sine and a velocity, as pendulums have them, are angle and velocity. Of other
    observations the first two components vary and a third stays at its median.
    """
    size = observations.shape[1]
    if size > MOST_VARIABLES:
        return None
    if size == 3 and np.all(np.abs((observations[:, :2] ** 2).sum(1) - 1) < _ON_CIRCLE):
        low, high = _range(observations[:, 2])
        return Plane(
            ("angle", "velocity"),
            np.array([-np.pi, low]),
            np.array([np.pi, high]),
            # In float32, half a turn is more than pi, and outside of the outermost cell.
            lambda o: np.stack([np.arctan2(*o[:, 1::-1].T.astype(float)), o[:, 2]], 1),
            lambda p: np.stack([np.cos(p[:, 0]), np.sin(p[:, 0]), p[:, 1]], 1),
        )
    if size == 1:
        low, high = _range(observations[:, 0])
        return Plane(
            ("observation 0", ""),
            np.array([low, 0.0]),
            np.array([high, 1.0]),
            lambda o: np.stack([o[:, 0], np.full(len(o), 0.5)], 1),
            lambda p: p[:, :1],
        )
    ranges = np.array([_range(x) for x in observations[:, :2].T])
    rest = np.median(observations[:, 2:], axis=0)
    return Plane(
        ("observation 0", "observation 1"),
        ranges[:, 0],
        ranges[:, 1],
        lambda o: o[:, :2],
        lambda p: np.concatenate([p, np.tile(rest, (len(p), 1))], 1),
        f"observation 2 = {rest[0]:.3g}" if size == 3 else "",
    )


def maps_of(
    state: qusac.TrainState,
    plane: Plane,
    *,
    config: qusac.Config,
    task: qusac.Task,
    num_cells: int,
) -> Maps:
    """Q and sqrt(U) of the mean action at the cells' centres, and D's transitions in the cells.

    Args:
        state: of one seed.
        plane: the states.
        config: hyperparameters.
        task: the environment's sizes.
        num_cells: H, and W.
    """
    edges = np.linspace(plane.low, plane.high, num_cells + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    x, y = np.meshgrid(centres[:, 0], centres[:, 1])
    points = np.stack([x.ravel(), y.ravel()], 1)
    q, std = _values_at(state, plane.observe(points).astype(np.float32), config, task)
    visited = plane.project(data_of(state))
    counts, _, _ = np.histogram2d(visited[:, 1], visited[:, 0], bins=(edges[:, 1], edges[:, 0]))
    return Maps(np.asarray(q).reshape(x.shape), np.asarray(std).reshape(x.shape), counts)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _values_at(
    state: qusac.TrainState, observation: jax.Array, config: qusac.Config, task: qusac.Task
) -> tuple[jax.Array, jax.Array]:
    return qusac.diagnostics.values_at(state, observation, config=config, task=task)


def data_of(state: qusac.TrainState) -> np.ndarray:
    """The observations `[B, O]` in D of one seed."""
    return np.asarray(state.replay.data.observation)[: int(state.replay.size)]


@matplotlib.rc_context(heat_maps.RC)
def draw(
    maps: Mapping[int, Maps], plane: Plane, path: pathlib.Path, title: str, *, with_u: bool
) -> pathlib.Path:
    """A row for each checkpoint.

    Args:
        maps: by step.
        plane: the states.
        path: of the PNG.
        title: of the figure.
        with_u: whether the method estimates U.
    """
    columns = [heat_maps.Column("Q", [one.q for one in maps.values()])]
    if with_u:
        columns.append(heat_maps.Column("sqrt(U)", [one.std for one in maps.values()]))
    visits = [np.log10(1 + one.visits) for one in maps.values()]
    columns.append(heat_maps.Column("log10(1 + visits)", visits))
    figure, axes = heat_maps.draw(
        columns,
        [f"step {step}\n{plane.names[1]}" for step in maps],
        panel=(3.1, 2.3),
        title=f"{title}{', ' if plane.note else ''}{plane.note}",
        origin="lower",
        extent=(plane.low[0], plane.high[0], plane.low[1], plane.high[1]),
        aspect="auto",
    )
    for axis in axes[-1]:
        axis.set_xlabel(plane.names[0])
    if plane.names[0] == "angle":
        for axis in axes.flat:
            axis.set_xticks([-np.pi, 0, np.pi], ["−π", "0", "π"])
    for axis in [*axes[:, 1:].flat, *(axes.flat if not plane.names[1] else [])]:
        axis.set_yticks([])
    for axis in axes[:-1].flat:
        axis.set_xticklabels([])
    return style.save(figure, path)


def _range(values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = _MARGIN * (high - low) or 1.0
    return low - margin, high + margin
