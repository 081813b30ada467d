"""From an offline run to an online one: the same agent goes on, with the dataset in D.

What the agent has learned (actor, critics, U-net, temperature, dynamics) is taken over as it is;
what differs between Algorithms 2 and 3 (data, refreshes, λ) is the online run's.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from experiments import files, seeds
from experiments.processes import Processes
from qusac_jax import qusac
from qusac_jax.checkpoint import Checkpointer, CheckpointError

_REMEDY = "pass the workdir of an offline run that has a checkpoint"
# What makes the networks, or means the same in both algorithms, and so stays.
_KEPT = (
    "method",
    "num_members",
    "num_critics",
    "critic_data",
    "discount",
    "actor_hidden",
    "critic_hidden",
    "unet_hidden",
    "normalize_observations",
    "target_entropy",
    "real_ratio",
)
_KEPT_DYNAMICS = (
    "hidden",
    "init_scale",
    "reward_prior_scale",
    "normalize_inputs",
    "normalize_targets",
    "clip_observations",
    "learn_termination",
)
_NETWORKS = (
    "method",
    "num_members",
    "num_critics",
    "critic_data",
    "actor_hidden",
    "critic_hidden",
    "unet_hidden",
    "normalize_observations",
)
_WARMUP = 3  # steps; D is full of data, so that learning can begin at once


def config_of(
    path: pathlib.Path, *, argument: str = "init_from", remedy: str = _REMEDY
) -> qusac.Config:
    """The hyperparameters of a run, from its config.json.

    Args:
        path: workdir of the run.
        argument: what errors say the path was given as.
        remedy: what they advise.

    Raises:
        ValueError: if they cannot be read, or are those of another version.
    """
    content = files.read_json(path / "config.json", remedy).get("config", {})

    def as_tuples(tree: dict[str, Any]) -> dict[str, Any]:
        return {n: tuple(value) if isinstance(value, list) else value for n, value in tree.items()}

    try:
        dynamics = qusac.DynamicsConfig(**as_tuples(content.pop("dynamics")))
        return qusac.Config(**as_tuples(content), dynamics=dynamics)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{argument}: {path} is of another version ({error}); {remedy}") from error


def continued(offline: qusac.Config, online: qusac.Config) -> qusac.Config:
    """The online configuration with the agent of the offline one.

    D gets room for the dataset and for as much as the online configuration would hold.
    """
    dynamics = {name: getattr(offline.dynamics, name) for name in _KEPT_DYNAMICS}
    return dataclasses.replace(
        online,
        **{name: getattr(offline, name) for name in _KEPT},
        dynamics=dataclasses.replace(online.dynamics, **dynamics),
        replay_capacity=offline.replay_capacity + online.replay_capacity,
        warmup_steps=_WARMUP,
    )


def check_same_agent(offline: qusac.Config, online: qusac.Config) -> None:
    """Raises `ValueError` if the command line asks for other networks than those taken over."""
    kept = dataclasses.asdict(continued(offline, online))
    asked = dataclasses.asdict(online)
    for name in _NETWORKS:
        if kept[name] != asked[name]:
            raise ValueError(
                f"init_from: the offline run has {name} {kept[name]!r}, got {asked[name]!r}; leave "
                "it out, the agent is taken over as it is"
            )


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
        run_seeds: R seeds, this process's share of those of the offline run.
        placement: of the state's arrays.
        processes: of the online run; how many the offline run had does not matter.

    Raises:
        ValueError: if there is no checkpoint that fits.
    """
    about = files.read_json(path / "config.json", _REMEDY)
    first = about.get("seed", 0)
    there = list(range(first, first + about.get("num_seeds", 0)))
    here = list(itertools.chain(*processes.gather(list(run_seeds))))
    if there != here:
        raise ValueError(
            f"init_from: {path} has the seeds {there}, this run {here}; use "
            f"--seed={first} --num_seeds={len(there)}"
        )
    init = seeds.mapped(qusac.init, placement=placement, config=config_of(path), task=task)
    own = init(seeds.keys(run_seeds, 1)[:, 0])
    try:
        like = processes.like(own, placement)
        restored = Checkpointer(path / "checkpoints").restore_device(like)
    except CheckpointError as error:
        raise ValueError(f"init_from: {path} cannot be continued ({error}); {_REMEDY}") from error
    taken = processes.own(restored, own, placement)._replace(key=None)
    taken = jax.tree.map(np.asarray, seeds.real(taken, placement))
    # A schedule of λ begins with the online run.
    learner = taken.learner._replace(num_updates=np.zeros_like(taken.learner.num_updates))
    room = seeds.real(state.replay.data, placement)
    data = jax.tree.map(_over_the_first, room, taken.replay.data)
    count = taken.replay.size
    buffer = state.replay._replace(data=data, size=count, position=count)
    return state._replace(
        learner=seeds.placed(learner, placement),
        dynamics=seeds.placed(taken.dynamics, placement),
        replay=seeds.placed(buffer, placement),
    )


def _over_the_first(empty: Any, data: np.ndarray) -> np.ndarray:
    """Arrays `[R, C, ...]` whose first slots hold the data `[R, T, ...]`."""
    result = np.array(empty)
    result[:, : data.shape[1]] = data
    return result
