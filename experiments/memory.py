"""What training takes: memory of the devices, and of the host for copies of the environment."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from experiments import seeds
from qusac_jax import _memory, qusac
from qusac_jax.environments import functional, streams
from qusac_jax.qusac.fitting_data import shuffles_in_turn
from qusac_jax.qusac.state import rollout_chunks

_FLOAT = 4  # bytes
_FORWARD_AND_BACKWARD = 2  # activations, and the gradients with respect to them
_LAYERS = 2  # of a network, which are there together without gradients
# 32-bit words per slot of D that the shuffle of one member takes in an epoch: drawn, sorted, kept.
_SHUFFLES = 7
_LEAST_COPY = 10_000  # bytes of an environment, whose Python objects alone are as large
_PARTS = ("D", "D_model", "D_1..D_N", "networks", "work space", "environments")
_SHARE_TO_LOWER = 0.05  # of all bytes; what takes less is not worth lowering


class Memory(NamedTuple):
    """Bytes of the state of all seeds, and about what is computed with at once."""

    replay: int  # D
    model_data: int  # D_model
    member_data: int  # D_1..D_N together; 0 for critics that do not have their own
    networks: int  # weights and optimizers
    work: int  # temporaries of the larger of an update, a fit and rollouts
    environments: int = 0  # states of those on the device, evaluation's too

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def expected(
    config: qusac.Config, task: qusac.Task, num_seeds: int, streams_size: int = 0
) -> Memory:
    """What a run holds on its devices; nothing is allocated to find out.

    Args:
        config: hyperparameters.
        task: the environment's sizes.
        num_seeds: trained together.
        streams_size: `stream_bytes` of the environment, for each seed.
    """
    init = functools.partial(qusac.init, config=config, task=task)
    state = jax.eval_shape(init, jax.random.key(0))
    size = lambda tree: num_seeds * _tree_bytes(tree)
    return Memory(
        replay=size(state.replay),
        model_data=size(state.model_data),
        member_data=size(state.member_data),
        networks=size((state.learner, state.dynamics)),
        work=num_seeds
        * max(part(config, task) for part in (_update_bytes, _fit_bytes, _rollout_bytes)),
        environments=num_seeds * streams_size,
    )


def stream_bytes(env: str, eval_episodes: int) -> int:
    """Bytes of a seed's environments on the device: one to learn in, and one an evaluation episode.

    0 for an environment on the host, whose copies `check_copies` counts.
    """
    if not functional.is_functional(env):
        return 0
    start = functools.partial(streams.start, functional.load(env))
    return (1 + eval_episodes) * _tree_bytes(jax.eval_shape(start, jax.random.key(0)))


def _tree_bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _update_bytes(config: qusac.Config, task: qusac.Task) -> int:
    """Activations of the critics, and of the local uncertainty, which no gradient goes through."""
    inputs = task.observation_size + task.action_size
    critics = config.num_groups * config.num_critics
    floats = config.batch_size * critics * (inputs + sum(config.critic_hidden))
    ahead = 0
    if config.qvariance.reads_next_values:
        pairs = config.batch_size
        if config.unet_looks_ahead:  # a step of all rollouts that advance together
            _, pairs = rollout_chunks(config)
        next_states = pairs * config.num_members * config.actions_drawn
        ahead = _LAYERS * next_states * critics * max(inputs, *config.critic_hidden, 1)
    return _FLOAT * (_FORWARD_AND_BACKWARD * floats + ahead)


def _fit_bytes(config: qusac.Config, task: qusac.Task) -> int:
    return _fit_step_bytes(config, task) + _shuffle_bytes(config)


def _fit_step_bytes(config: qusac.Config, task: qusac.Task) -> int:
    """Activations of all members."""
    if not config.uses_model:
        return 0
    width = task.observation_size + task.action_size + sum(config.dynamics.hidden)
    rows = config.num_members * config.fit_batch_size
    return _FLOAT * _FORWARD_AND_BACKWARD * rows * width


def _shuffle_bytes(config: qusac.Config) -> int:
    """Of the order in which members see D in an epoch."""
    if not config.uses_model:
        return 0
    capacity, members = config.replay_capacity, config.num_members
    in_turn = shuffles_in_turn(capacity - capacity // config.dynamics.holdout_every)
    return _FLOAT * capacity * (members + _SHUFFLES if in_turn else members * _SHUFFLES)


def _rollout_bytes(config: qusac.Config, task: qusac.Task) -> int:
    """Of the rollouts that advance together: what they draw and store, and two layers."""
    if not config.uses_model:
        return 0
    _, rows = rollout_chunks(config)
    if config.critic_data == "member":
        rows *= config.num_members
    stored = 2 * (2 * task.observation_size + task.action_size + 1)  # once more in their order
    drawn = task.observation_size + 1
    layers = _LAYERS * max(config.dynamics.hidden, default=0)
    return _FLOAT * rows * (config.rollout_length * (stored + drawn) + layers)


def describe(
    config: qusac.Config,
    task: qusac.Task,
    num_seeds: int,
    devices: Sequence[Any],
    streams_size: int = 0,
) -> str:
    """What a run takes on each of its devices, and what there is."""
    needed = expected(config, task, _seeds_in_one_memory(num_seeds, devices), streams_size)
    available = _memory.available(devices[0])
    free = "" if available is None else f", {_memory.in_words(available)} are free"
    sizes = zip(_PARTS, needed, strict=True)
    parts = (f"{what} {_memory.in_words(size)}" for what, size in sizes if size)
    return f"{_memory.in_words(needed.total)} of device memory ({', '.join(parts)}){free}"


def _seeds_in_one_memory(num_seeds: int, devices: Sequence[Any]) -> int:
    """Seeds whose arrays are together."""
    return seeds.per_device(num_seeds, len(devices)) * devices_in_one_memory(num_seeds, devices)


def devices_in_one_memory(num_seeds: int, devices: Sequence[Any]) -> int:
    """Of those that seeds are on; devices of a CPU have one memory together."""
    return seeds.num_used(num_seeds, len(devices)) if devices[0].platform == "cpu" else 1


def check(
    config: qusac.Config,
    task: qusac.Task,
    num_seeds: int,
    devices: Sequence[Any],
    *,
    has_dataset: bool = False,
    streams_size: int = 0,
) -> None:
    """Raises `ValueError` if a run cannot fit into the memory of its devices.

    Where a device does not say how much memory it has, nothing is refused.

    Args:
        config: hyperparameters.
        task: the environment's sizes.
        num_seeds: trained together.
        devices: that they are shared out to.
        has_dataset: whether D is a dataset, which is as large as it is.
        streams_size: `stream_bytes` of the environment, for each seed.
    """
    needed = expected(config, task, _seeds_in_one_memory(num_seeds, devices), streams_size)
    available = _memory.available(devices[0])
    if available is not None and needed.total > available:
        flags = to_lower(needed, _behind(config, task, has_dataset))
        raise ValueError(
            f"the run needs {describe(config, task, num_seeds, devices, streams_size)}; lower "
            f"{f'{flags} or ' if flags else ''}--num_seeds, or take "
            f"{'a smaller dataset or ' if has_dataset else ''}--size=small"
        )


def _behind(config: qusac.Config, task: qusac.Task, has_dataset: bool) -> dict[str, Sequence[str]]:
    """The flags that decide about each part of `Memory`, by its name."""
    replay = () if has_dataset else ("replay_capacity",)
    interval = "fit_every" if config.rollout_interval == config.fit_every else "roll_out_every"
    rollouts = ("rollouts_per_step", "rollout_length", interval, "retain_refreshes")
    fit_batch = "dynamics.batch_size" if config.dynamics.batch_size else "batch_size"
    ahead = ("gap_samples",) if config.actions_drawn > 1 else ()
    work = (
        (_update_bytes(config, task), ("batch_size", "num_members", *ahead)),
        (_fit_step_bytes(config, task), (fit_batch, "num_members")),
        (_shuffle_bytes(config), (*replay, "num_members")),
        (_rollout_bytes(config, task), ("rollout_length",)),
    )
    of_config = lambda *names: tuple(f"--config.{name}" for name in names)
    return {
        "replay": of_config(*replay),
        "model_data": of_config(*rollouts),
        "member_data": of_config("num_members", *rollouts),
        "networks": (*of_config("num_members"), "the layer sizes"),
        "work": of_config(*max(work)[1]),
        "environments": ("--eval_episodes",),
    }


def to_lower(needed: Any, flags: Mapping[str, Sequence[str]]) -> str:
    """What to lower, in words: the flags behind each part that takes much of all bytes.

    Args:
        needed: a named tuple of bytes.
        flags: by the name of each part.
    """
    much = _SHARE_TO_LOWER * sum(needed)
    parts = (flags[name] for name, size in needed._asdict().items() if size > much)
    return ", ".join(dict.fromkeys(itertools.chain.from_iterable(parts)))


def check_copies(state_size: int, num_seeds: int, eval_episodes: int) -> None:
    """Raises `ValueError` if the host has no room for the copies of the environment.

    Args:
        state_size: bytes of what a copy's future depends on, which is the least that it takes.
        num_seeds: each with a copy of its own.
        eval_episodes: further copies for each seed.
    """
    count = num_seeds * (1 + eval_episodes)
    _memory.check(
        count * max(state_size, _LEAST_COPY),
        f"{count} copies of the environment",
        "lower --eval_episodes or --num_seeds",
        is_on_host=True,
    )
