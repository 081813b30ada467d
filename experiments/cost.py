"""What training costs: floating-point operations by hand, seconds from them, and memory.

Counted are matrix products, 2 per multiplication and addition, a backward pass as two forward ones
(one where only the gradient of the input is needed). Element-wise work is left out.
"""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from experiments import seeds
from qusac_jax import _memory, qusac
from qusac_jax.qusac import uncertainty
from qusac_jax.qusac.fitting_data import shuffles_in_turn
from qusac_jax.qusac.rollouts import num_chunks
from qusac_jax.qusac.state import num_rollouts

# Learning steps that are timed, after one that compiles.
_TIMED_STEPS = 5
# Epochs of a typical fit; it may take fewer, and up to `max_epochs`.
_TYPICAL_EPOCHS = 3
_FLOAT = 4  # bytes
_FORWARD_AND_BACKWARD = 2  # activations, and the gradients with respect to them
_LAYERS = 2  # of a network, which are there together without gradients
# Words for each slot of D that an epoch's order for one member takes: drawn, sorted and kept.
_SHUFFLES = 7
_LEAST_COPY = 10_000  # bytes of an environment, whose Python objects alone are as large
_PARTS = ("D", "D_model", "D_1..D_N", "networks", "work space")
_SHARE_TO_LOWER = 0.05  # of all bytes; what takes less is not worth lowering


class Duration(NamedTuple):
    """Seconds that a run will take, about."""

    seconds: float  # of the run as it is
    small_seconds: float | None  # at the small sizes; None where these would save nothing
    steps_per_second: float  # learning steps, without fits of the model and rollouts

    def describe(self, num_steps: int) -> str:
        """A line for a person who has just started a run of that many steps."""
        small = ""
        if self.small_seconds is not None:
            small = f"; --size=small would take {duration(self.small_seconds)}"
        return (
            f"{num_steps} steps will take about {duration(self.seconds)} "
            f"({self.steps_per_second:.3g} learning steps/s here, compilation apart){small}"
        )


def duration(seconds: float) -> str:
    """In words, for a person."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.3g} h"


def expected_duration(
    learning_step: Callable[[], None], config: qusac.Config, task: qusac.Task, num_steps: int
) -> Duration:
    """Seconds of `num_steps` learning steps and the refreshes among them.

    Refreshes are not measured: they are taken to do as many operations per second as updates.

    Args:
        learning_step: does one and waits for its result; called a few times.
        config: hyperparameters.
        task: the environment's sizes.
        num_steps: that are left.
    """
    learning_step()
    times = []
    for _ in range(_TIMED_STEPS):
        start = time.perf_counter()
        learning_step()
        times.append(time.perf_counter() - start)
    seconds_per_step = statistics.median(times)
    flops_per_update = update_flops(config, task)
    per_flop = seconds_per_step / (config.updates_per_step * flops_per_update)
    small = _small(config)
    small_seconds = None
    # An accelerator waits for small networks: what they would take cannot be told from operations.
    if small and jax.default_backend() == "cpu" and update_flops(small, task) < flops_per_update:
        small_seconds = num_steps * per_flop * step_flops(small, task)
    return Duration(
        seconds=num_steps * per_flop * step_flops(config, task),
        small_seconds=small_seconds,
        steps_per_second=1.0 / seconds_per_step,
    )


def _small(config: qusac.Config) -> qusac.Config | None:
    """At the small sizes; None where they do not go with the rest, such as very long rollouts."""
    try:
        return qusac.presets.small(config)
    except ValueError:
        return None


def step_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of a learning step: its G updates and its share of the refreshes."""
    updates = config.updates_per_step * update_flops(config, task)
    if not config.uses_model:
        return updates
    fit, rollouts = fit_flops(config, task), rollout_flops(config, task)
    return updates + fit / config.fit_every + rollouts / config.rollout_interval


def update_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of one gradient update."""
    batch = config.batch_size
    inputs = task.observation_size + task.action_size
    critic = _mlp_flops(inputs, config.critic_hidden, 1) * batch * config.num_critics
    unet = _mlp_flops(inputs, config.unet_hidden, 1) * batch
    actor = _actor_flops(config, task) * batch
    groups = config.num_groups
    # Critics: target forward, forward and backward; actor's pass: forward and input gradient.
    total = critic * groups * (1 + 3 + 2) + actor * (groups + 3)
    if config.uses_unet:
        total += unet * (1 + 3 + 2) + actor
        if not config.unet_looks_ahead:
            total += batch * _local_flops(config, task)
    return float(total)


def _local_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of the local uncertainty of a pair."""
    method = uncertainty.METHODS[config.method]
    inputs = task.observation_size + task.action_size
    critics = _mlp_flops(inputs, config.critic_hidden, 1) * config.num_critics * config.num_groups
    if not method.asks_model:
        return float(critics)
    flops = _model_flops(config, task) * config.num_members
    if method.reads_next_values:
        actor = _actor_flops(config, task)
        flops += config.num_members * _actions(config) * (critics + actor)
    return float(flops)


def _actions(config: qusac.Config) -> int:
    """Drawn at each next state that a member expects."""
    return config.gap_samples if uncertainty.METHODS[config.method].compares_actions else 1


def fit_step_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of a gradient step of a fit: forward and backward through all members."""
    return float(3 * _model_flops(config, task) * config.num_members * config.fit_batch_size)


def fit_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of a typical fit on a full D, of an agent with a model."""
    epochs = min(_TYPICAL_EPOCHS, config.dynamics.max_epochs)
    per_epoch = -(-config.replay_capacity // config.fit_batch_size)
    steps = min(epochs * per_epoch, config.dynamics.max_steps)
    return fit_step_flops(config, task) * steps


def rollout_flops(config: qusac.Config, task: qusac.Task) -> float:
    """Of the rollouts that are made at once, of an agent with a model."""
    per_buffer = num_rollouts(config) * config.rollout_length
    # A penalty asks all members at each transition.
    predictions = 1 + (config.num_members if config.penalty else 0)
    each = predictions * _model_flops(config, task) + _actor_flops(config, task)
    local = _local_flops(config, task) if config.unet_looks_ahead else 0.0
    return float(per_buffer * (config.num_model_buffers * each + local))


class Memory(NamedTuple):
    """Bytes of the state of all seeds, and about what is computed with at once."""

    replay: int  # D
    model_data: int  # D_model
    member_data: int  # D_1..D_N together; 0 for critics that do not have their own
    networks: int  # weights and optimisers
    work: int  # temporaries of the larger of an update, a fit and rollouts

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def memory(config: qusac.Config, task: qusac.Task, num_seeds: int) -> Memory:
    """What a run holds on its devices; nothing is allocated to find out."""
    init = functools.partial(qusac.init, config=config, task=task)
    state = jax.eval_shape(init, jax.random.key(0))
    size = lambda tree: (
        num_seeds
        * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
    )
    return Memory(
        replay=size(state.replay),
        model_data=size(state.model_data),
        member_data=size(state.member_data),
        networks=size((state.learner, state.dynamics)),
        work=num_seeds
        * max(part(config, task) for part in (_update_bytes, _fit_bytes, _rollout_bytes)),
    )


def _update_bytes(config: qusac.Config, task: qusac.Task) -> int:
    """Activations of the critics, and of the local uncertainty, which no gradient goes through."""
    inputs = task.observation_size + task.action_size
    critics = config.num_groups * config.num_critics
    floats = config.batch_size * critics * (inputs + sum(config.critic_hidden))
    ahead = 0
    if uncertainty.METHODS[config.method].reads_next_values:
        pairs = config.batch_size
        if config.unet_looks_ahead:  # a step of all rollouts that advance together
            _, pairs = num_chunks(num_rollouts(config), config.num_members)
        next_states = pairs * config.num_members * _actions(config)
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
    _, rows = num_chunks(num_rollouts(config), config.num_members)
    if config.critic_data == "member":
        rows *= config.num_members
    stored = 2 * (2 * task.observation_size + task.action_size + 1)  # once more in their order
    drawn = task.observation_size + 1
    layers = _LAYERS * max(config.dynamics.hidden, default=0)
    return _FLOAT * rows * (config.rollout_length * (stored + drawn) + layers)


def describe_memory(
    config: qusac.Config, task: qusac.Task, num_seeds: int, devices: Sequence[Any]
) -> str:
    """What a run takes on each of its devices, and what there is."""
    needed = memory(config, task, _seeds_in_one_memory(num_seeds, devices))
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


def check_memory(
    config: qusac.Config,
    task: qusac.Task,
    num_seeds: int,
    devices: Sequence[Any],
    *,
    has_dataset: bool = False,
) -> None:
    """Raises `ValueError` if a run cannot fit into the memory of its devices.

    Where a device does not say how much memory it has, nothing is refused.

    Args:
        config: hyperparameters.
        task: the environment's sizes.
        num_seeds: trained together.
        devices: that they are shared out to.
        has_dataset: whether D is a dataset, which is as large as it is.
    """
    needed = memory(config, task, _seeds_in_one_memory(num_seeds, devices))
    available = _memory.available(devices[0])
    if available is not None and needed.total > available:
        flags = to_lower(needed, _behind(config, task, has_dataset))
        raise ValueError(
            f"the run needs {describe_memory(config, task, num_seeds, devices)}; lower "
            f"{f'{flags} or ' if flags else ''}--num_seeds, or take "
            f"{'a smaller dataset or ' if has_dataset else ''}--size=small"
        )


def _behind(config: qusac.Config, task: qusac.Task, has_dataset: bool) -> Sequence[Sequence[str]]:
    """The flags that decide about each part of `Memory`."""
    replay = () if has_dataset else ("replay_capacity",)
    interval = "fit_every" if config.rollout_interval == config.fit_every else "roll_out_every"
    rollouts = ("rollouts_per_step", "rollout_length", interval, "retain_refreshes")
    fit_batch = "dynamics.batch_size" if config.dynamics.batch_size else "batch_size"
    ahead = ("gap_samples",) if _actions(config) > 1 else ()
    work = (
        (_update_bytes(config, task), ("batch_size", "num_members", *ahead)),
        (_fit_step_bytes(config, task), (fit_batch, "num_members")),
        (_shuffle_bytes(config), (*replay, "num_members")),
        (_rollout_bytes(config, task), ("rollout_length",)),
    )
    fields = (
        replay,
        rollouts,
        ("num_members", *rollouts),
        ("num_members",),
        max(work)[1],
    )
    flags = [tuple(f"--config.{name}" for name in names) for names in fields]
    flags[3] += ("the layer sizes",)
    return flags


def to_lower(sizes: Sequence[int], flags: Sequence[Sequence[str]]) -> str:
    """What to lower, in words: the flags behind each part that takes much of all bytes."""
    much = _SHARE_TO_LOWER * sum(sizes)
    parts = (names for size, names in zip(sizes, flags, strict=True) if size > much)
    return ", ".join(dict.fromkeys(itertools.chain.from_iterable(parts)))


def check_copies(state_size: int, num_seeds: int, eval_episodes: int) -> None:
    """Raises `ValueError` if the host has no room for the copies of the environment.

    Args:
        state_size: bytes of what a copy's future depends on, which is the least that it takes.
        num_seeds: each with a copy of its own.
        eval_episodes: and these to be evaluated in.
    """
    count = num_seeds * (1 + eval_episodes)
    _memory.check(
        count * max(state_size, _LEAST_COPY),
        f"{count} copies of the environment",
        "lower --eval_episodes or --num_seeds",
        is_on_host=True,
    )


def _model_flops(config: qusac.Config, task: qusac.Task) -> int:
    inputs = task.observation_size + task.action_size
    return _mlp_flops(inputs, config.dynamics.hidden, 2 * (task.observation_size + 1))


def _actor_flops(config: qusac.Config, task: qusac.Task) -> int:
    return _mlp_flops(task.observation_size, config.actor_hidden, 2 * task.action_size)


def _mlp_flops(inputs: int, hidden: tuple[int, ...], outputs: int) -> int:
    sizes = (inputs, *hidden, outputs)
    return 2 * sum(a * b for a, b in itertools.pairwise(sizes))
