"""What the dynamics learn from: training and held-out slots of D, and the statistics of D.

Axes: O observation size, A action size, I numbers in a row.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from qusac_jax.qusac import layers, replay
from qusac_jax.qusac.config import DynamicsConfig, InputScale
from qusac_jax.qusac.dynamics import Dynamics, scale_inputs
from qusac_jax.task import Transition

# Bits that a word leaves for the slot's number when an epoch is shuffled; see `shuffle`.
_MAX_SLOT_BITS = 17
_BLOCK = 2**14  # rows that are looked at together, so that nothing is made that is as large as D

_Rows = Callable[[Transition], jax.Array]  # numbers `[..., I]` of transitions `[...]`


def shuffle(key: chex.PRNGKey, length: jax.Array, max_length: int, num_rows: int) -> jax.Array:
    """`[num_rows, max_length]`: in each row, a random order of 0..length - 1 comes first."""
    bits = _slot_bits(max_length)
    if shuffles_in_turn(max_length):
        is_in = jnp.arange(max_length) < length

        def row(key: chex.PRNGKey) -> jax.Array:
            return jnp.argsort(
                jnp.where(is_in, jax.random.uniform(key, is_in.shape, jnp.float32), jnp.inf)
            )

        # One after another: drawing and sorting take several times what comes of it.
        return jax.lax.map(row, jax.random.split(key, num_rows))
    # Sorting single words is several times faster than sorting pairs, so the numbers travel in the
    # low bits of the random words. Above them, one bit sends the rest to the end. Numbers whose
    # random bits are the same stay in order, which does no harm while they are few: with 14 bits
    # and more, eight on average.
    draws = jax.random.bits(key, (num_rows, max_length), jnp.uint32) >> 1 >> bits << bits
    number = jnp.arange(max_length, dtype=jnp.uint32)
    rest = (number >= length).astype(jnp.uint32) << 31
    words = jnp.sort(draws | rest | number, axis=-1)
    return (words & ((1 << bits) - 1)).astype(jnp.int32)


def _slot_bits(max_length: int) -> int:
    return max(max_length - 1, 1).bit_length()


def shuffles_in_turn(max_length: int) -> bool:
    """Whether `shuffle` of so many numbers makes one row after another."""
    return _slot_bits(max_length) > _MAX_SLOT_BITS


def max_train(buffer: replay.Buffer, config: DynamicsConfig) -> int:
    """Training slots of a full buffer, or one more."""
    capacity = buffer.data.reward.shape[0]
    return capacity - capacity // config.holdout_every


def num_holdout(buffer: replay.Buffer, config: DynamicsConfig) -> jax.Array:
    """Slots `[]` that are held out."""
    return (buffer.size + config.holdout_every - 1) // config.holdout_every


def holdout_slots(buffer: replay.Buffer, config: DynamicsConfig) -> jax.Array:
    """All slots `[n]` that are held out of a full buffer, also those that are not written yet."""
    return jnp.arange(0, buffer.data.reward.shape[0], config.holdout_every)


def holdout_slots_at(rank: jax.Array, config: DynamicsConfig) -> jax.Array:
    """The slots that are held out, 0, holdout_every, 2 holdout_every, ..., by rank, any shape."""
    return rank * config.holdout_every


def training_slots(rank: jax.Array, config: DynamicsConfig) -> jax.Array:
    """The slots that are not held out, by their rank among themselves, any shape."""
    return rank + rank // (config.holdout_every - 1) + 1


def read(
    dynamics: Dynamics, buffer: replay.Buffer, slots: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Inputs `[..., O + A]` and targets `[..., O + 1]` at the slots `[...]`.

    Targets are (s' - s, r), in units of `Dynamics.target_std`.
    """
    batch = jax.tree.map(lambda x: x[slots], buffer.data)
    delta = batch.next_observation - batch.observation
    targets = jnp.concatenate([delta, batch.reward[..., None]], axis=-1)
    return scale_inputs(dynamics, batch.observation, batch.action), targets / dynamics.target_std


def with_statistics(dynamics: Dynamics, buffer: replay.Buffer, config: DynamicsConfig) -> Dynamics:
    """The dynamics with the statistics of D: of inputs, targets and range where asked for."""
    dynamics = dynamics._replace(change_std=_mean_and_std(_changes, buffer)[1])
    dynamics = _with_target_units(dynamics, buffer, config)
    if config.normalize_inputs != "no":
        dynamics = _with_input_statistics(dynamics, buffer, config.normalize_inputs)
    return with_range(dynamics, buffer, config)


def _with_target_units(
    dynamics: Dynamics, buffer: replay.Buffer, config: DynamicsConfig
) -> Dynamics:
    """Deviations in D: a loss then weighs targets alike that are a thousand times apart.

    A prior over rewards is of the unit that they are learned in. That is the largest reward of a
    step that is known, not a deviation: D may not have a reward yet that the task does have.

    What the members have learned in the units of the fit before is not rescaled: units differ by
    little between two fits, but for a reward that is met for the first time.
    """
    change, reward = dynamics.target_std[:-1], dynamics.target_std[-1:]
    if config.normalize_targets:
        change, reward = dynamics.change_std, _mean_and_std(_rewards, buffer)[1]
    if config.reward_prior_scale > 0:
        low, high = _range(_rewards, buffer)
        reward = jnp.maximum(jnp.maximum(-low, high), config.reward_scale)
    return dynamics._replace(target_std=jnp.concatenate([change, reward]))


def _with_input_statistics(
    dynamics: Dynamics, buffer: replay.Buffer, scale: InputScale
) -> Dynamics:
    if scale == "range":
        low, high = _range(_inputs, buffer)
        mean = (low + high) / 2
        std = layers.deviation(mean, jnp.square(high - low) / 12)
    else:
        mean, std = _mean_and_std(_inputs, buffer)
    return dynamics._replace(input_mean=mean, input_std=std)


def _changes(data: Transition) -> jax.Array:
    return data.next_observation - data.observation


def _inputs(data: Transition) -> jax.Array:
    return jnp.concatenate([data.observation, data.action], axis=-1)


def _rewards(data: Transition) -> jax.Array:
    return data.reward[..., None]


def _fold(
    rows: _Rows,
    buffer: replay.Buffer,
    combine: Callable[[Any, jax.Array, jax.Array], Any],
    start: Any,
) -> Any:
    """Goes through D in blocks of rows.

    Args:
        rows: what is looked at.
        buffer: D.
        combine: of what came before, of rows `[block, I]` and of whether each counts `[block, 1]`.
        start: before the first block.
    """
    capacity = buffer.data.reward.shape[0]
    block = min(capacity, _BLOCK)

    def step(before: Any, first: jax.Array) -> tuple[Any, None]:
        begin = jnp.minimum(first, capacity - block)  # the last block goes back into the one before
        part = lambda x: jax.lax.dynamic_slice_in_dim(x, begin, block)
        slot = begin + jnp.arange(block)
        counts = (slot >= first) & (slot < buffer.size)
        return combine(before, rows(jax.tree.map(part, buffer.data)), counts[:, None]), None

    return jax.lax.scan(step, start, jnp.arange(0, capacity, block))[0]


def _mean_and_std(rows: _Rows, buffer: replay.Buffer) -> tuple[jax.Array, jax.Array]:
    """`[I]` each, over D; the deviation of what is constant is 1."""
    count = jnp.maximum(buffer.size, 1).astype(jnp.float32)
    # From the first row on, so that the mean of what is constant is exact.
    origin = rows(jax.tree.map(lambda x: x[0], buffer.data))
    zeros = jnp.zeros_like(origin)
    total = lambda before, x, counts: before + jnp.sum(jnp.where(counts, x, 0.0), axis=0)
    shift = (
        _fold(rows, buffer, lambda sum, x, counts: total(sum, x - origin, counts), zeros) / count
    )
    squares = lambda sum, x, counts: total(sum, jnp.square(x - origin - shift), counts)
    var = _fold(rows, buffer, squares, zeros) / count
    mean = origin + shift
    return mean, layers.deviation(mean, var)


def _range(rows: _Rows, buffer: replay.Buffer) -> tuple[jax.Array, jax.Array]:
    """Least and largest values `[I]` in D."""
    like = jnp.zeros_like(rows(jax.tree.map(lambda x: x[0], buffer.data)))

    def combine(
        before: tuple[jax.Array, jax.Array], x: jax.Array, counts: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        low = jnp.min(jnp.where(counts, x, jnp.inf), axis=0)
        high = jnp.max(jnp.where(counts, x, -jnp.inf), axis=0)
        return jnp.minimum(before[0], low), jnp.maximum(before[1], high)

    return _fold(rows, buffer, combine, (like + jnp.inf, like - jnp.inf))


def with_range(dynamics: Dynamics, buffer: replay.Buffer, config: DynamicsConfig) -> Dynamics:
    """The dynamics with the range of D, where rollouts are to stay inside it, infinite elsewhere.

    With next observations: what ends an episode is reached by them only.
    """
    # Not what was there: an agent may have learned offline with a range, and go on without.
    least, most = jnp.full_like(dynamics.least, -jnp.inf), jnp.full_like(dynamics.most, jnp.inf)
    if config.clip_observations:
        low, high = _range(lambda data: data.observation, buffer)
        next_low, next_high = _range(lambda data: data.next_observation, buffer)
        least = least.at[:-1].set(jnp.minimum(low, next_low))
        most = most.at[:-1].set(jnp.maximum(high, next_high))
    if config.clip_rewards:
        low, high = _range(_rewards, buffer)
        least, most = least.at[-1:].set(low), most.at[-1:].set(high)
    return dynamics._replace(least=least, most=most)
