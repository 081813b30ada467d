"""Transitions with K successors per state and action, in place of dense ones.

Axes: S states, A actions, K successors of a pair, N ensemble members. Missing mass is
termination.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import _members

__all__ = ["Sparse", "distinct", "from_dense", "mean", "member", "to_dense"]


class Sparse(NamedTuple):
    """Transition probabilities in memory proportional to S * A * K.

    `qusac_jax.ube` takes it wherever it takes a dense transition `[.., S, A, S]`. Members of an
    ensemble may share one `next_state`. A successor that is listed twice has the sum of its
    probabilities. -1 pads rows of fewer successors, with probability 0; S is the terminal state,
    and mass on it is missing mass. Under `jit`, any other number makes the results NaN.
    """

    # Arrays of NumPy or JAX, or what takes their place in a pytree.
    next_state: Any  # [(N,) S, A, K] integers in -1 .. S
    probability: Any  # [(N,) S, A, K] >= 0; rows sum to at most 1

    @property
    def num_states(self) -> int:
        """S."""
        return self.next_state.shape[-3]

    @property
    def dtype(self) -> np.dtype:
        """Of the probabilities."""
        return self.probability.dtype


def from_dense(transition: chex.Array) -> Sparse:
    """The sparse form of `[S, A, S]` or `[N, S, A, S]`, with one `next_state` for all members.

    For use outside `jit`. K is the largest number of successors of a pair.

    Raises:
        ValueError: for another rank, and for entries that are negative, NaN or infinite.
    """
    transition = np.asarray(transition)
    is_one = transition.ndim in (3, 4) and 0 not in transition.shape
    if not is_one or transition.shape[-1] != transition.shape[-3]:
        raise ValueError(
            f"transition must have shape [S, A, S] or [N, S, A, S], got {transition.shape}"
        )
    if not np.all((transition >= 0) & (transition < np.inf)):
        raise ValueError(
            "transition must be finite and not negative, got values from "
            f"{transition.min():.6g} to {transition.max():.6g}; clip rounding errors at 0"
        )
    possible = (transition > 0).reshape(-1, *transition.shape[-3:]).any(0)
    num_successors = max(1, possible.sum(-1).max())
    first = np.argsort(~possible, axis=-1, kind="stable")[..., :num_successors]
    next_state = np.where(np.take_along_axis(possible, first, -1), first, -1)
    index = np.broadcast_to(first, (*transition.shape[:-1], num_successors))
    probability = np.where(next_state >= 0, np.take_along_axis(transition, index, -1), 0)
    return Sparse(next_state.astype(np.int32), probability)


def to_dense(transition: Sparse) -> jax.Array:
    """The transition `[.., S, A, S]` of a sparse one."""
    transition = Sparse(*map(jnp.asarray, transition))
    num_states, probability = transition.num_states, transition.probability
    own = at_least_int32(transition.next_state)
    next_state = states(own, num_states)
    probability = masses(own, num_states, probability)
    rows = probability.reshape(-1, probability.shape[-1])
    columns = jnp.broadcast_to(next_state, probability.shape).reshape(rows.shape)
    dense = jnp.zeros((len(rows), num_states), rows.dtype)
    dense = dense.at[jnp.arange(len(rows))[:, None], columns].add(rows)
    return dense.reshape(*probability.shape[:-1], num_states)


def distinct(next_state: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each successor of a pair once, with the sum of its weights; the others become padding.

    Args:
        next_state: `[.., K]` integers; -1 is padding.
        weight: `[.., K]`.

    Returns:
        Both in the order of the successors, -1 and weight 0 for what is left out.
    """
    order = np.argsort(next_state, axis=-1, kind="stable")
    next_state = np.take_along_axis(next_state, order, -1).astype(np.int64)  # has room for -1
    weight = np.take_along_axis(weight, order, -1)
    begins = np.ones(next_state.shape, bool)
    begins[..., 1:] = next_state[..., 1:] != next_state[..., :-1]
    group = np.cumsum(begins.ravel()) - 1
    total = np.bincount(group, weight.ravel())[group].reshape(weight.shape)
    is_first = begins & (next_state >= 0)
    return np.where(is_first, next_state, -1), np.where(is_first, total, 0.0)


def member(transition: Any, index: int) -> Any:
    """One MDP's transition of a dense or sparse ensemble."""
    if not isinstance(transition, Sparse):
        return transition[index]
    next_state, probability = transition
    is_shared = next_state.ndim < probability.ndim
    return Sparse(next_state if is_shared else next_state[index], probability[index])


def mean(transition: Sparse) -> Sparse:
    """The mean transition of an ensemble; of N * K successors if members have their own.

    Raises:
        ValueError: for the transition of one MDP.
    """
    next_state, probability = map(jnp.asarray, transition)
    if probability.ndim != 4:
        raise ValueError(
            f"transition.probability must have shape [N, S, A, K], got {jnp.shape(probability)}"
        )
    if next_state.ndim < probability.ndim:
        return Sparse(next_state, _members.mean(probability))

    def joined(x):
        return jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1)

    return Sparse(joined(next_state), joined(probability) / len(probability))


def at_least_int32(index) -> jax.Array:
    """Integers in a type that sizes fit into: beside one of 8 bits, 256 would wrap around to 0."""
    index = jnp.asarray(index)
    return index.astype(jnp.int32) if index.dtype.itemsize < 4 else index


def states(next_state: jax.Array, num_states: int) -> jax.Array:
    """Successors, in 0 .. S-1: 0 in place of those that are no state."""
    is_state = (next_state >= 0) & (next_state < num_states)
    return jnp.where(is_state, next_state, 0)


def masses(next_state: jax.Array, num_states: int, probability: jax.Array) -> jax.Array:
    """Probabilities of successors that are states, else 0; NaN for impossible numbers."""
    is_state = (next_state >= 0) & (next_state < num_states)
    # Of states too, or those would be NaN on the way, at which `jax_debug_nans` stops.
    is_possible = (next_state >= -1) & (next_state <= num_states)
    other = jnp.where(is_possible, 0.0, jnp.nan).astype(probability.dtype)
    return jnp.where(is_state, probability, other)
