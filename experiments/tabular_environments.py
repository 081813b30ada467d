"""The environments that `experiments.tabular` offers by name."""

import pathlib
from collections.abc import Callable

from qusac_jax._fields import check_choice
from qusac_jax.tabular import environments, planning, problems

# What --size is of each, beside the environments of the paper.
SIZES = {
    "river_swim": "states",
    "chain": "states",
    "queue": "customers that fit in",
    "maze": "rooms along a side",
    "bandit": "arms",
    "catch": "rows",
    "discounting_chain": "",
    "umbrella": "steps",
}
PAPER = ("deep_sea", "deep_sea_stochastic", "seven_room")
NAMES = (*PAPER, *SIZES, "grid")
_MAKERS: dict[str, Callable[..., environments.Environment]] = {
    "river_swim": problems.river_swim,
    "chain": problems.chain,
    "queue": problems.queue,
    "maze": problems.maze,
    "bandit": problems.bandit,
    "catch": problems.catch,
    "discounting_chain": problems.discounting_chain,
    "umbrella": problems.umbrella,
}


def make(
    name: str,
    *,
    length: int,
    size: int | None = None,
    map_file: str | None = None,
    support: bool = False,
    timed: bool = False,
) -> environments.Environment:
    """An environment by name.

    Args:
        name: one of `NAMES`.
        length: L of DeepSea.
        size: of an environment in `SIZES`; None for its default.
        map_file: text file with the map of `grid`.
        support: whether agents are told which successors are possible.
        timed: whether the time is part of the state.

    Raises:
        ValueError: for an unknown name, or a size or map that it does not have or needs.
    """
    check_choice("env", name, NAMES)
    if size is not None and not SIZES.get(name):
        raise ValueError(f"size is not read by env {name!r}; leave --size out")
    if (map_file is not None) != (name == "grid"):
        raise ValueError(f"map must be given for env 'grid' alone, got {map_file!r} with {name!r}")
    if name == "grid":
        environment = _read_grid(pathlib.Path(str(map_file)))
    elif name == "seven_room":
        environment = environments.rooms()
    elif name in PAPER:
        environment = environments.deep_sea(length, stochastic=name == "deep_sea_stochastic")
    else:
        environment = _MAKERS[name]() if size is None else _MAKERS[name](size)
    if timed:
        environment = planning.with_time(environment)
    return environments.with_support(environment) if support else environment


def _read_grid(path: pathlib.Path) -> environments.Environment:
    try:
        text = path.read_text()
    except OSError as error:
        raise ValueError(f"map {str(path)!r} cannot be read: {error.strerror}") from error
    return problems.grid(text, name=path.stem)
