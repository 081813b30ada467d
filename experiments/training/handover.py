"""From an offline run to an online one: the same agent goes on, with the dataset in D.

What the agent has learned (actor, critics, U-net, temperature, dynamics) is taken over as it is;
what differs between Algorithms 2 and 3 (data, refreshes, λ) is the online run's.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from experiments import config_file, files, seeds
from experiments.processes import Processes
from experiments.run_directory import has_checkpoint
from experiments.training import checkpoint_parts
from qusac_jax import environments, qusac
from qusac_jax.checkpoint import Checkpointer, CheckpointError
from qusac_jax.qusac.config import LEAST_WARMUP

REMEDY = "pass the workdir of an offline run that has a checkpoint"
# What makes the networks, which are taken over as they are.
_NETWORKS = (
    "method",
    "num_members",
    "num_critics",
    "critic_data",
    "actor_hidden",
    "critic_hidden",
    "unet_hidden",
    "normalize_observations",
    "dynamics.hidden",
    "dynamics.reward_prior_scale",
    "dynamics.reward_scale",
    "dynamics.normalize_inputs",
    "dynamics.normalize_targets",
    "dynamics.learn_termination",
)
# What means the same in both algorithms, and so stays unless other values are asked for.
_KEPT = (
    "discount",
    "target_entropy",
    "real_ratio",
    "dynamics.clip_observations",
    "dynamics.clip_rewards",
    "dynamics.holdout_every",  # what was held out is not trained on later
)
# What an agent begins with; nothing reads it later.
_OF_BEGINNING = ("critic_init_gain", "initial_temperature", "dynamics.init_scale")


def continued(
    offline: qusac.Config, values: dict[str, Any], given: Collection[str]
) -> dict[str, Any]:
    """Hyperparameters of an online run that goes on with the agent of an offline one.

    D gets room for the dataset and for as much as the online run alone would hold.

    Args:
        offline: of the offline run.
        values: of the online run by itself, by name.
        given: names of those that a file or the command line says.

    Returns:
        All hyperparameters by name.

    Raises:
        ValueError: if other networks are asked for than those that are taken over.
    """
    there = files.flatten(dataclasses.asdict(offline))
    for name in _NETWORKS:
        if name in given and _as_tuple(values[name]) != there[name]:
            raise ValueError(
                f"init_from: the offline run has {name} {there[name]!r}, got {values[name]!r}; "
                "leave it out, the agent is taken over as it is"
            )
    for name in _OF_BEGINNING:
        if name in given:
            files.warn(f"config.{name} has no effect: the agent is taken over as it is")
    kept = {name: there[name] for name in (*_NETWORKS, *_KEPT) if name not in given}
    # D is full of data, so that learning can begin at once.
    warmup = {} if "warmup_steps" in given else {"warmup_steps": LEAST_WARMUP}
    room = {"replay_capacity": offline.replay_capacity + values["replay_capacity"]}
    return values | kept | warmup | room


def resumed(own: qusac.Config, values: dict[str, Any], given: Collection[str]) -> dict[str, Any]:
    """The same as `continued`, of an online run that has begun and whose offline run is gone.

    Args:
        own: of the online run.
        values: of its command by itself, by name.
        given: names of those that a file or the command line says.

    Returns:
        All hyperparameters by name.
    """
    there = files.flatten(dataclasses.asdict(own))
    decided = (*_NETWORKS, *_KEPT, "warmup_steps")
    kept = {name: there[name] for name in decided if name not in given}
    return values | kept | {"replay_capacity": own.replay_capacity}


def check_is_offline(path: pathlib.Path) -> None:
    """Raises `ValueError` if a run, that of `path`, did not learn from a dataset."""
    if not _dataset(files.read_json(path / "config.json", REMEDY)):
        raise ValueError(
            f"init_from: {path} is no offline run, its config.json names no dataset; to go on with "
            "an online run, pass its --workdir and a larger --num_steps"
        )


def dataset_hash(path: pathlib.Path) -> str | None:
    """The checksum of what an offline run learned from; None if the run is gone."""
    source = path / "config.json"
    about = files.read_json(source, REMEDY) if source.is_file() else {}
    return _dataset(about).get("sha256")


def _dataset(about: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of the dataset; nothing where it is damaged."""
    data = about.get("dataset")
    return data if isinstance(data, dict) else {}


def check_sizes(path: pathlib.Path, spec: environments.Spec) -> None:
    """Raises `ValueError` if an environment has other sizes than that of an offline run.

    Args:
        path: workdir of the offline run.
        spec: of the environment.
    """
    data = _dataset(files.read_json(path / "config.json", REMEDY))
    there = (data.get("observation_size"), data.get("action_size"))
    here = (spec.observation_size, spec.action_size)
    if None not in there and there != here:
        raise ValueError(
            f"init_from: {path} has observations of {there[0]} numbers and actions of {there[1]}, "
            f"{spec.name!r} of {here[0]} and {here[1]}; pass the --env of that run, or leave "
            "--init_from out"
        )


def check_seeds(path: pathlib.Path, first: int, num_seeds: int) -> None:
    """Raises `ValueError` if an offline run has other seeds than an online one that continues it.

    Args:
        path: workdir of the offline run.
        first: seed of the online run.
        num_seeds: of all its processes.
    """
    about = files.read_json(path / "config.json", REMEDY)
    there = (about.get("seed", 0), about.get("num_seeds", 0))
    if there != (first, num_seeds):
        raise ValueError(
            f"init_from: {path} has {there[1]} seeds from {there[0]} on, this run {num_seeds} from "
            f"{first} on; use --seed={there[0]} --num_seeds={there[1]}"
        )


def action_cost(
    path: pathlib.Path, env: str, given: float | None, workdir: str | None
) -> float | None:
    """The action cost of an online run, whose rewards are added to those of the dataset in D.

    It is the one that is asked for, or that the run has begun with, or else the offline run's,
    which may be gone once the run has begun. Warns where that is another one, and where the offline
    run was of another environment.

    Args:
        path: workdir of the offline run.
        env: of the online run.
        given: what was asked for, if anything.
        workdir: of the online run; None for a new one.
    """
    source = path / "config.json"
    about = files.read_json(source, REMEDY) if source.is_file() else {}
    begun = pathlib.Path(workdir) / "config.json" if workdir and has_checkpoint(workdir) else None
    if given is None and begun is not None and begun.is_file():
        given = files.read_json(begun, "choose another workdir").get("action_cost")
    if about and about.get("env") != env:
        files.warn(
            f"init_from: {path} is of {about.get('env')!r}, this run of {env!r}; D will hold "
            "transitions of both"
        )
    there = about.get("action_cost")
    if there is not None and not isinstance(there, int | float):
        raise ValueError(f"init_from: {source} has the action_cost {there!r}; {REMEDY}")
    if None not in (there, given) and there != given:
        files.warn(
            f"action_cost is {given:g}, but {there:g} in {path}; D will hold rewards of both"
        )
    return there if given is None else given


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def take_over(
    path: pathlib.Path,
    state: qusac.TrainState,
    task: qusac.Task,
    run_seeds: Sequence[int],
    placement: seeds.Placement | None,
    processes: Processes,
) -> qusac.TrainState:
    """The state `[R, ...]` of an online run, with agent and data of an offline run's checkpoint.

    All processes of the run must call it.

    Args:
        path: workdir of the offline run.
        state: of the online run before its first step, of the configuration `continued`.
        task: of the environment.
        run_seeds: R seeds, this process's share of those of the offline run, see `check_seeds`.
        placement: of the state's arrays.
        processes: of the online run; how many the offline run had does not matter.

    Raises:
        ValueError: if there is no checkpoint that fits.
    """
    about = files.read_json(path / "config.json", REMEDY)
    config = config_file.of_run(path, argument="init_from", remedy=REMEDY)
    source = Checkpointer(path / "checkpoints", remedy="put its files back")
    try:
        everyones = checkpoint_parts.agents(source, config, task, processes.count * len(run_seeds))
    except CheckpointError as error:
        raise ValueError(f"init_from: {path} cannot be continued ({error}); {REMEDY}") from error
    taken = jax.tree.map(processes.share, everyones)
    # A schedule of λ begins with the online run.
    learner = taken.learner._replace(num_updates=np.zeros_like(taken.learner.num_updates))
    room = seeds.cropped(state.replay.data, placement)
    rows = _known_rows(about, taken.replay, uses_model=config.uses_model)
    known = jax.tree.map(lambda x: x[:, rows], taken.replay.data)
    data = jax.tree.map(_over_the_first, room, known)
    count = taken.replay.size - int((~rows).sum())
    buffer = state.replay._replace(data=data, size=count, position=count)
    return state._replace(
        learner=seeds.placed(learner, placement),
        dynamics=seeds.placed(taken.dynamics, placement),
        replay=seeds.placed(buffer, placement),
    )


def _known_rows(about: dict[str, Any], buffer: Any, *, uses_model: bool) -> np.ndarray:
    """Which slots `[T]` of an offline run's D are of use online.

    Online the dynamics are fitted to all of D, and would learn a stand-in as if it were true. A
    file has the next observation of every terminated transition or of none; then none is kept.
    Critics read no observation after an end, so that without a model all are.

    Args:
        about: config.json of the run.
        buffer: D of its seeds, `[R, T, ...]`, the same data for each.
        uses_model: whether the agent has dynamics.
    """
    terminated = buffer.data.terminated[0]
    if not (uses_model and _dataset(about).get("num_unknown_next_observations")):
        return np.ones(len(terminated), bool)
    print(
        f"D begins without {terminated.sum()} of the dataset's {len(terminated)} transitions: the "
        "file does not hold the observations that episodes terminated in",
        flush=True,
    )
    return ~terminated


def _over_the_first(empty: Any, data: np.ndarray) -> np.ndarray:
    """Arrays `[R, C, ...]` whose first slots hold the data `[R, T, ...]`."""
    result = np.array(empty)
    result[:, : data.shape[1]] = data
    return result
