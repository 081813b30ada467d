"""Minari datasets: a folder with `metadata.json` and one HDF5 group per episode.

The layout is documented at https://minari.farama.org/content/dataset_standards/.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from qusac_jax._actions import as_action_cost
from qusac_jax.datasets import checks
from qusac_jax.datasets.dataset import Dataset
from qusac_jax.datasets.scores import metadata_reference

METADATA_FILE, DATA_FILE = "metadata.json", "main_data.hdf5"
ENV_KEY = "qusac_jax_env"  # `save` notes here what `environments.make` calls the environment
COST_KEY = "qusac_jax_action_cost"  # and here the action cost that the rewards have


def data_folder(path: Path) -> Path | None:
    """The folder with the files of a Minari dataset, `path` itself or `path/data`, or None."""
    for folder in (path / "data", path):
        try:
            if (folder / METADATA_FILE).is_file():
                return folder
        except OSError as error:  # a folder that may not be entered, a name that is too long
            raise ValueError(f"dataset: {folder} cannot be read ({error}); pass another") from error
    return None


def is_complete(folder: Path) -> bool:
    """Whether a download or a write of the dataset has come to its end."""
    try:
        metadata = json.loads((folder / METADATA_FILE).read_text())
        return (folder / DATA_FILE).is_file() and metadata["total_episodes"] > 0
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def read(folder: Path, name: str) -> Dataset:
    """Reads and checks the dataset in a folder.

    An episode's T + 1 observations give every transition its own next observation, so nothing is
    dropped.

    Args:
        folder: as of `data_folder`.
        name: as the user gave it.

    Raises:
        ValueError: for everything that is wrong with the files.
    """
    metadata, observation_space, low, high = _read_metadata(folder)
    path = folder / DATA_FILE
    with checks.open_file(path) as file:
        groups = _episode_keys(path, file, metadata["total_episodes"])
        episodes = [_read_episode(path, file, key, observation_space, low, high) for key in groups]
    episodes = [episode for episode in episodes if len(episode["reward"])]
    if not episodes:
        raise ValueError(f"dataset: {path} has no transition; pass a dataset with episodes")
    finished = [e for e in episodes if e["terminated"][-1] or e["truncated"][-1]]
    returns = np.array([e["reward"].sum(dtype=np.float64) for e in finished])
    num_episodes = len(episodes)
    following = np.concatenate([e["observation"][1:] for e in episodes])
    observation = np.concatenate([e.pop("observation")[:-1] for e in episodes])
    flat = {
        key: np.concatenate([e.pop(key) for e in episodes])
        for key in ("action", "reward", "terminated", "truncated")
    }
    env, env_note = _environment(metadata)
    return Dataset(
        name=name,
        source="minari",
        path=str(path),
        sha256=checks.sha256(path),
        observation=observation,
        next_observation=following,
        **flat,
        next_observation_known=np.ones(len(following), bool),
        num_dropped=0,
        num_episodes=num_episodes,
        episode_returns=returns,
        action_low=low,
        action_high=high,
        action_bounds_assumed=False,
        reference=metadata_reference(metadata, str(metadata.get("dataset_id", folder))),
        action_cost=_action_cost(metadata, folder / METADATA_FILE),
        env=env,
        env_note=env_note,
    )


def check_format(where: Path) -> None:
    """Raises `ValueError` for a format that needs other packages; what is damaged, Minari names."""
    try:
        found = json.loads(where.read_text()).get("data_format", "hdf5")
    except (OSError, ValueError, AttributeError, RecursionError):
        return
    if found != "hdf5":
        raise ValueError(
            f"dataset: {where} has the data_format {found!r}; only 'hdf5' can be read: write the "
            "dataset again with data_format='hdf5'"
        )


def _read_metadata(folder: Path) -> tuple[dict[str, Any], spaces.Space, np.ndarray, np.ndarray]:
    where = folder / METADATA_FILE
    check_format(where)
    try:
        dataset = checks.require("minari").MinariDataset(folder)
        metadata = dataset.storage.metadata
        total = int(metadata["total_episodes"])
    except Exception as error:  # Minari asserts, and parses what a stranger may have written
        detail = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ValueError(
            f"dataset: Minari cannot read {where} ({detail}); a download or a write of it was cut "
            "short, or it is damaged or of another version: remove the folder and make it again"
        ) from error
    observation_space, action_space = dataset.observation_space, dataset.action_space
    leaves = (
        list(observation_space.values())
        if isinstance(observation_space, spaces.Dict)
        else [observation_space]
    )
    if not all(isinstance(leaf, spaces.Box) and len(leaf.shape) == 1 for leaf in leaves):
        raise ValueError(
            f"dataset: {where}, key 'observation_space' is {observation_space}; observations must "
            "be a flat Box or a Dict of flat Boxes"
        )
    if not isinstance(action_space, spaces.Box) or len(action_space.shape) != 1:
        raise ValueError(
            f"dataset: {where}, key 'action_space' is {action_space}; actions must be a flat Box"
        )
    low, high = action_space.low.astype(np.float32), action_space.high.astype(np.float32)
    checks.check_bounds(f"{where}, key 'action_space'", low, high)
    return {**metadata, "total_episodes": total}, observation_space, low, high


def _episode_keys(path: Path, file: Any, total: int) -> list[str]:
    present = set(checks.keys(path, file))
    if total == 0 or len(present) != total:
        raise ValueError(
            f"dataset: {path} has {len(present)} episodes, and key 'total_episodes' of "
            f"{METADATA_FILE} is {total}; the dataset is empty, or a write of it was cut short: "
            "download or write it again"
        )
    expected = [f"episode_{index}" for index in range(total)]
    missing = [key for key in expected if key not in present]
    if missing:
        raise ValueError(
            f"dataset: {path} has no key {missing[0]!r}; number its {total} episodes from 0"
        )
    return expected


def _read_episode(
    path: Path, file: Any, key: str, space: spaces.Space, low: np.ndarray, high: np.ndarray
) -> dict[str, np.ndarray]:
    group = checks.entry(path, file, key)
    if checks.is_array(group):
        raise ValueError(f"dataset: {path}, key {key!r} is an array; a group is needed")
    observation = _read_observations(path, group, space)
    action = checks.floats(path, group, "actions", ndim=2)
    reward = checks.floats(path, group, "rewards", ndim=1)
    terminated = checks.flags(path, group, "terminations")
    truncated = checks.flags(path, group, "truncations")
    checks.check_lengths(
        f"{path}, key {key!r}",
        {
            "observations less one": len(observation) - 1,
            "actions": len(action),
            "rewards": len(reward),
            "terminations": len(terminated),
            "truncations": len(truncated),
        },
    )
    if action.shape[1] != low.size:
        raise ValueError(
            f"dataset: {path}, key '{key}/actions' has {action.shape[1]} numbers per row, but the "
            f"action_space in {METADATA_FILE} has {low.size}; correct the one that is wrong"
        )
    ended = np.flatnonzero(terminated | truncated)
    if ended.size and ended[0] < len(reward) - 1:
        raise ValueError(
            f"dataset: {path}, key {key!r}, row {ended[0]}: the episode is terminated or truncated "
            "here but goes on; split it into two episodes"
        )
    remedy = "correct the action_space of its metadata.json, or the data"
    return {
        "observation": observation,
        "action": checks.to_unit(f"{path}, key '{key}/actions'", action, low, high, remedy),
        "reward": reward,
        "terminated": terminated,
        "truncated": truncated,
    }


def _read_observations(path: Path, group: Any, space: spaces.Space) -> np.ndarray:
    if isinstance(space, spaces.Dict):  # in the order of Gymnasium's FlattenObservation
        inner = checks.entry(path, group, "observations")
        leaves = [checks.floats(path, inner, key, ndim=2) for key in space.spaces]
        checks.check_lengths(
            f"{path}, key {inner.name.lstrip('/')!r}",
            dict(zip(space.spaces, map(len, leaves), strict=True)),
        )
        observation = np.concatenate(leaves, axis=1)
    else:
        observation = checks.floats(path, group, "observations", ndim=2)
    if observation.shape[1] != spaces.flatdim(space):
        raise ValueError(
            f"dataset: {path}, key '{group.name.lstrip('/')}/observations' has "
            f"{observation.shape[1]} numbers per row, but the observation_space in "
            f"{METADATA_FILE} has {spaces.flatdim(space)}; correct the one that is wrong"
        )
    return observation


def _action_cost(metadata: dict[str, Any], where: Path) -> float | None:
    """Of the recorded rewards; other programs take none, and `save` may not have been told."""
    cost = metadata.get(COST_KEY)
    if cost is None:
        return None if ENV_KEY in metadata else 0.0
    return as_action_cost(f"dataset: {where}, key {COST_KEY!r}", cost)


def _environment(metadata: dict[str, Any]) -> tuple[str | None, str]:
    """What `environments.make` calls the environment to evaluate in, and a note."""
    own = metadata.get(ENV_KEY)
    if isinstance(own, str):
        return own, "the environment that the data were recorded in"
    for key, note in (
        ("eval_env_spec", "the dataset's environment for evaluation"),
        ("env_spec", "the environment that the data were recorded in"),
    ):
        if metadata.get(key) is None:
            continue
        # MinariDataset has parsed both already.
        spec = json.loads(metadata[key])
        if spec.get("kwargs") or spec.get("additional_wrappers"):
            note += ", but for its own arguments or wrappers, which the name does not give"
        return f"gym:{spec['id']}", note
    return None, "the dataset does not say where it was recorded"
