"""Ring buffers of transitions as pytrees of static capacity and traced size."""

from typing import Generic, NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp

from qusac_jax.qusac.multistep import Ahead, Steps
from qusac_jax.task import Transition

Data = TypeVar("Data", Transition, Steps, Ahead)


class Buffer(NamedTuple, Generic[Data]):
    """The last `capacity` transitions; slots from `size` on have never been written."""

    data: Data  # [capacity, ...]
    position: jax.Array  # [] int32, slot of the next write
    size: jax.Array  # [] int32, number of valid slots


def init(capacity: int, observation_size: int, action_size: int) -> Buffer[Transition]:
    """An empty buffer in float32."""
    data = Transition(
        observation=jnp.zeros((capacity, observation_size), jnp.float32),
        action=jnp.zeros((capacity, action_size), jnp.float32),
        reward=jnp.zeros((capacity,), jnp.float32),
        next_observation=jnp.zeros((capacity, observation_size), jnp.float32),
        terminated=jnp.zeros((capacity,), bool),
    )
    return Buffer(data, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def add(buffer: Buffer[Data], batch: Data, mask: jax.Array | None = None) -> Buffer[Data]:
    """Writes the transitions where `mask` is true, in order, over the oldest ones.

    Args:
        buffer: to write to; donate it, or every call copies it.
        batch: `[B, ...]`, B at most the capacity.
        mask: `[B]` bool, default all.

    Returns:
        The buffer with `sum(mask)` transitions more; what `mask` leaves out takes no slot.

    Raises:
        ValueError: if B exceeds the capacity.
    """
    capacity = buffer.data.reward.shape[0]
    length = batch.reward.shape[0]
    if length > capacity:
        raise ValueError(f"batch has {length} transitions, more than the capacity {capacity}")
    if mask is None:
        count = jnp.int32(length)
        slots = (buffer.position + jnp.arange(length, dtype=jnp.int32)) % capacity
    else:
        rank = jnp.cumsum(mask.astype(jnp.int32))
        count = rank[-1]
        slots = jnp.where(mask, (buffer.position + rank - 1) % capacity, capacity)
    write = lambda old, new: old.at[slots].set(new.astype(old.dtype), mode="drop")
    return Buffer(
        data=jax.tree.map(write, buffer.data, batch),
        position=(buffer.position + count) % capacity,
        size=jnp.minimum(buffer.size + count, capacity),
    )


def sample(buffer: Buffer[Data], key: chex.PRNGKey, batch_size: int) -> Data:
    """Draws uniformly, with replacement, from the valid slots.

    Args:
        buffer: holding at least one transition; an empty one yields zeros.
        key: consumed.
        batch_size: B.

    Returns:
        Transitions `[B, ...]`.
    """
    slots = jax.random.randint(key, (batch_size,), 0, jnp.maximum(buffer.size, 1))
    return jax.tree.map(lambda x: x[slots], buffer.data)


def full(transitions: Transition) -> Buffer[Transition]:
    """A buffer that holds exactly these transitions `[C, ...]`."""
    count = jnp.int32(transitions.reward.shape[0])
    return Buffer(jax.tree.map(jnp.asarray, transitions), jnp.zeros((), jnp.int32), count)
