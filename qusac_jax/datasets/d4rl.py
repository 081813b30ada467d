"""D4RL's HDF5 files: flat arrays with two flags per row."""

from pathlib import Path
from typing import Any

import numpy as np

from qusac_jax.datasets import checks
from qusac_jax.datasets.dataset import Dataset
from qusac_jax.datasets.scores import D4RL_TASKS, d4rl_reference, d4rl_task

_KEYS = ("observations", "actions", "rewards", "terminals", "timeouts")


def read(path: Path, name: str, bounds: tuple[Any, Any] | None) -> Dataset:
    """Reads and checks a file.

    A row with a terminal has ended the task, also where it is a timeout as well. With the key
    `next_observations` every row is kept. Without it, a row's successor is the row below: rows
    that a time limit cut, and a last row that is neither terminal nor timeout, are dropped;
    terminal rows are kept with an unknown next observation.

    Args:
        path: of the file.
        name: as the user gave it.
        bounds: of the actions, scalars or `[A]` each; None for -1 and 1, as D4RL's are.

    Raises:
        ValueError: for everything that is wrong with the file.
    """
    with checks.open_file(path) as file:
        has_next = "next_observations" in checks.keys(path, file)
        keys = (*_KEYS, "next_observations") if has_next else _KEYS
        _check_shapes(path, {key: checks.shape(path, file, key) for key in keys})
        terminated = checks.flags(path, file, "terminals")
        truncated = checks.flags(path, file, "timeouts")
        reward = checks.floats(path, file, "rewards", ndim=1)
        action = checks.floats(path, file, "actions", ndim=2)
        observation = checks.floats(path, file, "observations", ndim=2)
        following = checks.floats(path, file, "next_observations", ndim=2) if has_next else None
    low, high = _bounds(path, (-1.0, 1.0) if bounds is None else bounds, action.shape[1])
    remedy = "pass those of the data (action_bounds; --action_bounds=environment), or correct it"
    action = checks.to_unit(f"{path}, key 'actions'", action, low, high, remedy)
    num_episodes, returns = _episodes(reward, terminated | truncated)
    rows, num_rows = (observation, action, reward, terminated, truncated), len(reward)
    known = np.ones(num_rows, bool)
    if following is None:
        rows, following, known = _successors(*rows)
    task = d4rl_task(path.name)
    _check_task(path, task, observation, action)
    observation, action, reward, terminated, truncated = rows
    return Dataset(
        name=name,
        source="d4rl",
        path=str(path),
        sha256=checks.sha256(path),
        observation=observation,
        action=action,
        reward=reward,
        next_observation=following,
        terminated=terminated,
        truncated=truncated,
        next_observation_known=known,
        num_dropped=num_rows - len(reward),
        num_episodes=num_episodes,
        episode_returns=returns,
        action_low=low,
        action_high=high,
        action_bounds_assumed=bounds is None,
        reference=None if task is None else d4rl_reference(task),
        action_cost=None if task is None else 0.0,
        env=None if task is None else D4RL_TASKS[task].env,
        env_note=_env_note(task),
    )


def _check_shapes(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    checks.check_lengths(path, {key: shape[0] if shape else 0 for key, shape in shapes.items()})
    if shapes["rewards"][:1] in ((), (0,)):
        raise ValueError(f"dataset: {path}, key 'rewards' is empty; pass a file with transitions")
    both = {shapes["observations"], shapes.get("next_observations", shapes["observations"])}
    if len(both) > 1 and len(shapes["observations"]) == 2:
        raise ValueError(
            f"dataset: {path}, key 'next_observations' has the shape "
            f"{shapes['next_observations']}, but 'observations' {shapes['observations']}; "
            "correct it, or remove it to take the row below as the successor"
        )


def _bounds(path: Path, bounds: tuple[Any, Any], size: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        low, high = (np.broadcast_to(np.asarray(b, np.float32), (size,)) for b in bounds)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"action_bounds must be (low, high), scalars or {size} numbers each, got {bounds!r}"
        ) from error
    checks.check_bounds(f"action_bounds for {path}", low, high)
    return low, high


def _episodes(reward: np.ndarray, ended: np.ndarray) -> tuple[int, np.ndarray]:
    """Number of episodes, and the returns of the finished ones."""
    ends = np.flatnonzero(ended)
    unfinished = not ended[-1]
    if ends.size == 0:
        return 1, np.zeros(0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    returns = np.add.reduceat(reward[: ends[-1] + 1].astype(np.float64), starts)
    return ends.size + unfinished, returns


def _successors(
    observation: np.ndarray,
    action: np.ndarray,
    reward: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
    """The rows that are kept, their next observations, and whether these are known."""
    keep = terminated | ~truncated
    keep[-1] = terminated[-1]
    kept = np.flatnonzero(keep)
    ended = terminated[kept]
    following = observation[np.where(ended, kept, kept + 1)]
    rows = tuple(a[kept] for a in (observation, action, reward, terminated, truncated))
    return rows, following, ~ended


def _check_task(path: Path, task: str | None, observation: np.ndarray, action: np.ndarray) -> None:
    if task is None:
        return
    expected = (D4RL_TASKS[task].observation_size, D4RL_TASKS[task].action_size)
    found = (observation.shape[1], action.shape[1])
    if found != expected:
        raise ValueError(
            f"dataset: {path} is named after D4RL's {task}, but its observations and actions have "
            f"{found[0]} and {found[1]} numbers, not {expected[0]} and {expected[1]}; rename the "
            "file, because its name is what chooses the reference returns"
        )


def _env_note(task: str | None) -> str:
    if task is None:
        return "the file does not say where it was recorded"
    known = D4RL_TASKS[task]
    return (
        f"recorded in {known.recorded_in} with mujoco-py; {known.env} is its successor on current "
        "MuJoCo, with the same observations, actions and ends, so scores can differ slightly"
    )
