"""Writes Minari datasets."""

import contextlib
import importlib
import secrets
import shutil
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from qusac_jax._messages import first_line
from qusac_jax.datasets import checks, minari_metadata
from qusac_jax.datasets.loading import MIN_TRANSITIONS, check_id, local_root
from qusac_jax.datasets.minari_files import data_folder
from qusac_jax.datasets.scores import ScoreReference

# Bytes of an HDF5 file beside its arrays, and of each group of an episode: above what was measured.
_OVERHEAD = 1_000_000
_OVERHEAD_OF_EPISODE = 20_000


class Episode(NamedTuple):
    """One episode of T steps, as an environment of `environments.make` gives it."""

    observation: Any  # [T + 1, O], with the one after the last step
    action: Any  # [T, A] in [-1, 1]
    reward: Any  # [T]
    terminated: Any  # [T] bool, true at the last step or nowhere
    truncated: Any  # [T] bool, likewise


def save(
    dataset_id: str,
    episodes: Iterable[Episode],
    *,
    env_name: str,
    reference: ScoreReference | None = None,
    description: str = "",
    algorithm: str = "",
    metadata: Mapping[str, Any] | None = None,
    action_cost: float | None = None,
    token: str | None = None,
) -> None:
    """Writes episodes as a new Minari dataset to where `load` looks for ids.

    Actions are written in the units of the environment's own action space, so that other programs
    can use the dataset with the environment that Minari recovers from it. All episodes are checked
    before anything is written. The dataset is written to a hidden folder beside its place and moved
    there when it is complete, so that of several processes that write one id, one gets it and the
    others change nothing.

    Args:
        dataset_id: such as `pendulum/medium-v0`.
        episodes: at least one, of the same sizes, with at least 3 transitions in all; all are held
            in memory.
        env_name: for `environments.make`; if it is `gym:ID` and registered with
            the name of its class, Minari can recover it too.
        reference: what counts as 0 and 100 percent, written as `ref_min_score` and
            `ref_max_score`.
        description: what policy the data come from, for people.
        algorithm: what made that policy.
        metadata: further JSON-compatible entries of the dataset's metadata, such as Minari's
            `author` and `author_email` (one or a list) and `code_permalink`.
        action_cost: rho >= 0 of the cost that is subtracted in the rewards and in the reference's
            returns already; None if it is not known.
        token: part of the hidden folder's name, known to this writer alone. A call with the same
            one removes what a killed call left; by default each call has its own.

    Raises:
        ValueError: if the id is malformed or taken, an episode, the metadata or the reference is
            wrong, or it cannot be written.
    """
    _check_texts(
        dataset_id=dataset_id, env_name=env_name, description=description, algorithm=algorithm
    )
    if isinstance(episodes, Episode) or not isinstance(episodes, Iterable):
        kind = type(episodes).__name__
        raise ValueError(f"episodes must be a list of datasets.Episode, got one {kind}; pass [...]")
    check_id(dataset_id)
    folder = local_root() / dataset_id
    if folder.exists():
        raise _taken(dataset_id, folder)
    env_spec, known_action_space, num_observed = _environment(env_name)
    checked = [_check(index, episode) for index, episode in enumerate(episodes)]
    observation_space, action_space = _spaces(checked, env_name, known_action_space, num_observed)
    entries = minari_metadata.entries(dataset_id, env_name, metadata or {}, reference, action_cost)
    minari = checks.require("minari")
    buffers = [_buffer(minari, episode, action_space) for episode in checked]
    # What Minari notes itself where a dataset is written to its place at once.
    entries |= {"dataset_id": dataset_id, "minari_version": minari.__version__}
    if description:
        entries["description"] = description
    if algorithm:
        entries["algorithm_name"] = algorithm
    # Hidden, because Minari passes over such folders.
    partial = folder.with_name(f".{folder.name}.{token or secrets.token_hex(8)}")
    shutil.rmtree(partial, ignore_errors=True)  # of a call with this token that was killed
    _check_room(folder, buffers)
    try:
        _make_namespace(dataset_id)
        partial.mkdir(parents=True)
        with _without_warnings():
            storage = checks.require("minari.dataset.minari_storage").MinariStorage.new(
                partial / "data",
                observation_space=observation_space,
                action_space=action_space,
                env_spec=env_spec,
                data_format="hdf5",
            )
            storage.update_metadata(entries)
            minari.MinariDataset(storage).update_dataset_from_buffer(buffers)
        _move(partial, folder, dataset_id)
    except BaseException as error:  # an interrupt too
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, (OSError, RuntimeError)):  # HDF5's own are of the second kind
            raise ValueError(
                f"dataset: {dataset_id!r} cannot be written to {folder.parent} "
                f"({first_line(error)}); nothing is left of it"
            ) from error
        raise


def _check_texts(**texts: Any) -> None:
    for name, given in texts.items():
        if not isinstance(given, str):
            raise ValueError(f"{name} must be text, got {given!r}")


def _spaces(
    episodes: list[Episode],
    env_name: str,
    known_action_space: spaces.Box | None,
    num_observed: int | None,
) -> tuple[spaces.Box, spaces.Box]:
    """The spaces of observations and actions that go into the metadata.

    Raises:
        ValueError: if the episodes are too few, differ in their sizes, or are of another
            environment than that whose action space and number of observations are known.
    """
    observation_size, action_size = _sizes(episodes)
    num_transitions = sum(len(episode.reward) for episode in episodes)
    if num_transitions < MIN_TRANSITIONS:
        raise ValueError(
            f"episodes must have at least {MIN_TRANSITIONS} transitions in all, to fit to some and "
            f"hold some out, got {num_transitions}"
        )
    action_space = known_action_space
    if action_space is None:
        action_space = spaces.Box(-1.0, 1.0, (action_size,), np.float32)
    if action_space.shape != (action_size,):
        raise ValueError(
            f"episodes: actions have {action_size} components, but {env_name!r} has "
            f"{action_space.shape}; pass the environment that the episodes come from"
        )
    if num_observed not in (None, observation_size):
        raise ValueError(
            f"episodes: observations have {observation_size} numbers, but {env_name!r} has "
            f"{num_observed}; pass the environment that the episodes come from"
        )
    return spaces.Box(-np.inf, np.inf, (observation_size,), np.float32), action_space


def _check_room(folder: Path, buffers: Iterable[Any]) -> None:
    """Raises `ValueError` where the disk is too full: with no room left, HDF5 ends the process."""
    needed = _OVERHEAD
    for buffer in buffers:
        arrays = (buffer.observations, buffer.actions, buffer.rewards)
        flags = (buffer.terminations, buffer.truncations)
        needed += _OVERHEAD_OF_EPISODE
        needed += sum(np.asarray(array).nbytes for array in (*arrays, *flags))
    existing = next(parent for parent in folder.parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ValueError(
            f"dataset: {folder} would take about {needed / 1e6:.0f} MB, and {free / 1e6:.0f} are "
            "free; free some, or set MINARI_DATASETS_PATH to another disk"
        )


def _taken(dataset_id: str, folder: Path) -> ValueError:
    is_namespace = folder.is_dir() and data_folder(folder) is None and any(folder.iterdir())
    remedy = "there are others in it" if is_namespace else "or remove the folder"
    return ValueError(
        f"dataset: {dataset_id!r} exists already ({folder}); choose another id or version, {remedy}"
    )


def _move(partial: Path, folder: Path, dataset_id: str) -> None:
    """Renames, which replaces nothing but an empty folder; the first of several writers wins."""
    try:
        partial.rename(folder)
    except OSError as error:
        if folder.exists():
            raise _taken(dataset_id, folder) from error
        raise


def _make_namespace(dataset_id: str) -> None:
    namespaces, namespace = checks.require("minari.namespace"), dataset_id.rpartition("/")[0]
    if namespace and namespace not in namespaces.list_local_namespaces():
        with contextlib.suppress(ValueError):  # another process has made it meanwhile
            namespaces.create_namespace(namespace)


def _environment(name: str) -> tuple[Any, spaces.Box | None, int | None]:
    """Gymnasium's spec, if Minari can write it, the action space, and the size of observations.

    Nothing is known of worlds of others, such as `own:world`.
    """
    if ":" not in name.removesuffix(":sincos") or name.startswith("dmc:"):
        from qusac_jax import environments  # slow to import

        spec = environments.spec(name)
        return None, spaces.Box(-1.0, 1.0, (spec.action_size,), np.float32), spec.observation_size
    if not name.startswith("gym:"):
        return None, None, None
    module, _, registered = name.removeprefix("gym:").rpartition(":")
    try:
        if module:  # which registers its environments when it is imported
            importlib.import_module(module)
        spec = gymnasium.spec(registered)
        env = gymnasium.make(spec)
        space, num_observed = env.action_space, spaces.flatdim(env.observation_space)
        env.close()
    except Exception as error:  # constructors of other people's environments raise anything
        raise ValueError(
            f"env_name: {name!r} cannot be built here ({error}); pass the environment that the "
            "episodes come from"
        ) from error
    if not isinstance(space, spaces.Box):
        raise ValueError(f"env_name: {name!r} has the action space {space}; it must be a flat Box")
    checks.check_bounds(f"the environment {name!r}", space.low, space.high)
    try:
        spec.to_json()
    except (ValueError, TypeError):  # made by a class, or with values, that JSON cannot hold
        return None, space, num_observed
    return spec, space, num_observed


def _check(index: int, episode: Episode) -> Episode:
    where = f"episode {index}"
    if not isinstance(episode, Episode):
        raise ValueError(f"{where} must be a datasets.Episode, got {type(episode).__name__}")
    observation = checks.as_floats(f"{where}, observation", episode.observation, ndim=2)
    action = checks.as_floats(f"{where}, action", episode.action, ndim=2)
    reward = checks.as_floats(f"{where}, reward", episode.reward, ndim=1)
    terminated = checks.as_flags(f"{where}, terminated", episode.terminated)
    truncated = checks.as_flags(f"{where}, truncated", episode.truncated)
    lengths = {
        "observation less one": len(observation) - 1,
        "action": len(action),
        "reward": len(reward),
        "terminated": len(terminated),
        "truncated": len(truncated),
    }
    checks.check_lengths(where, lengths)
    if len(reward) == 0 or (terminated | truncated)[:-1].any():
        raise ValueError(
            f"episodes: {where} is empty or goes on after its end; pass one entry per episode"
        )
    ones = np.ones(action.shape[1], np.float32)
    action = checks.to_unit(f"{where}, action", action.copy(), -ones, ones, "scale actions to them")
    return Episode(observation, action, reward, terminated, truncated)


def _sizes(episodes: list[Episode]) -> tuple[int, int]:
    sizes = {(e.observation.shape[1], e.action.shape[1]) for e in episodes}
    if len(sizes) != 1:
        raise ValueError(
            f"episodes must be at least one, of the same observation and action sizes, got "
            f"{len(episodes)} with the sizes {sorted(sizes)}"
        )
    return sizes.pop()


def _buffer(minari: Any, episode: Episode, space: spaces.Box) -> Any:
    action = episode.action
    if np.any(space.low != -1) or np.any(space.high != 1):
        action = np.clip(
            space.low + 0.5 * (action + 1.0) * (space.high - space.low), space.low, space.high
        ).astype(np.float32)
    return minari.data_collector.EpisodeBuffer(
        observations=episode.observation,
        actions=action,
        rewards=episode.reward,
        terminations=episode.terminated,
        truncations=episode.truncated,
    )


@contextlib.contextmanager
def _without_warnings():
    # Minari advises to fill in author, link and more; none of it is needed to read the data.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
