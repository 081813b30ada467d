"""The environments that `experiments.tabular` offers by name."""

import hashlib
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from qusac_jax import _memory
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

# Bytes that making one takes at least, per unit of its size: states with their successors, or an
# arm. For a maze, per unit of the square of its size, which has two states.
_LEAST_BYTES = {"bandit": 40, "catch": 8_000, "maze": 1_000} | dict.fromkeys(
    ("river_swim", "chain", "queue", "umbrella"), 300
)
_DECIMALS = 9  # of what is compared: the last bits may depend on the machine
_BLOCK_BYTES = 2**24  # at a time, as the arrays of a large environment fill the memory


def has_length(name: str) -> bool:
    """Whether the environment of this name is a DeepSea, of length L."""
    return name.startswith("deep_sea")


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
    if name == "grid" and map_file is None:
        raise ValueError("map is missing: pass --map=FILE, a text file, with env 'grid'")
    if map_file is not None and name != "grid":
        raise ValueError(f"map must be given for env 'grid' alone, got {map_file!r} with {name!r}")
    if name == "grid":
        environment = _read_grid(pathlib.Path(str(map_file)))
    elif name == "seven_room":
        environment = environments.rooms()
    elif name in PAPER:
        environment = environments.deep_sea(length, stochastic=name == "deep_sea_stochastic")
    elif size is None:
        environment = _MAKERS[name]()
    else:
        environment = _of_size(name, size)
    if timed:
        environment = planning.with_time(environment)
    return environments.with_support(environment) if support else environment


def _of_size(name: str, size: int) -> environments.Environment:
    least = _LEAST_BYTES[name] * (size**2 if name == "maze" else size)
    _memory.check(least, f"env {name!r} of size {size}", "lower --size", is_on_host=True)
    try:
        return _MAKERS[name](size)
    except ValueError as error:  # it says what the size is of
        raise ValueError(f"size: {error}") from error


def _read_grid(path: pathlib.Path) -> environments.Environment:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"map {str(path)!r} cannot be read: {error}; pass a text file with the map"
        ) from error
    return problems.grid(text, name=path.stem)


def identity(environment: environments.Environment) -> dict[str, Any]:
    """What config.json of a run says of its environment: the name and a hash of its arrays.

    Environments that differ may have one name, such as the maps in two files called map.txt.
    """
    return {"env": environment.name, "env_hash": _hash(environment)}


def _hash(environment: environments.Environment) -> str:
    solved_return = environment.solved_return
    numbers = (environment.episode_length, None if solved_return is None else float(solved_return))
    digest = hashlib.sha256(repr((*numbers, environment.regret)).encode())
    arrays = (environment.transition, environment.reward, environment.start, environment.reward_std)
    for array in map(np.asarray, jax.tree.leaves(arrays)):
        digest.update(repr(array.shape).encode())
        for block in np.array_split(array, 1 + array.nbytes // _BLOCK_BYTES):
            digest.update((np.round(block.astype(float), _DECIMALS) + 0.0).tobytes())  # -0 is 0
    return digest.hexdigest()[:16]
