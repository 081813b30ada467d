"""Transitions with K successors per state and action, and their products with values.

Axes: S states, A actions, K successors of a pair, N ensemble members, M = A * K successors of a
state. Missing mass is termination.
"""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

_UNROLLED = 64  # successors of a state up to which a product is a chain of vector operations


class Sparse(NamedTuple):
    """Transition probabilities in memory proportional to S * A * K.

    `qusac_jax.ube` takes it wherever it takes a dense transition `[.., S, A, S]`. Members of an
    ensemble may share one `next_state`. A successor that is listed twice has the sum of its
    probabilities. -1 pads rows of fewer successors, with probability 0; S is the terminal state,
    and mass on it is missing mass. Under `jit`, any other number makes the results NaN.
    """

    next_state: chex.Array  # [(N,) S, A, K] integers in -1 .. S
    probability: chex.Array  # [(N,) S, A, K] >= 0; rows sum to at most 1

    @property
    def num_states(self) -> int:
        """S."""
        return self.next_state.shape[-3]

    @property
    def dtype(self) -> np.dtype:
        """Of the probabilities."""
        return self.probability.dtype


class Flow(NamedTuple):
    """Transitions of a policy; successors lead, so that a product works on whole vectors."""

    next_state: jax.Array  # [M, S] in 0 .. S-1
    probability: jax.Array  # [M, S] 0 for what ends the episode


def from_dense(transition: chex.Array) -> Sparse:
    """The sparse form of `[S, A, S]` or `[N, S, A, S]`, with one `next_state` for all members.

    For use outside `jit`. K is the largest number of successors of a pair.
    """
    transition = np.asarray(transition)
    possible = (transition > 0).reshape(-1, *transition.shape[-3:]).any(0)
    num_successors = max(1, possible.sum(-1).max())
    first = np.argsort(~possible, axis=-1, kind="stable")[..., :num_successors]
    next_state = np.where(np.take_along_axis(possible, first, -1), first, -1)
    index = np.broadcast_to(first, (*transition.shape[:-1], num_successors))
    probability = np.where(next_state >= 0, np.take_along_axis(transition, index, -1), 0)
    return Sparse(next_state.astype(np.int32), probability)


def to_dense(transition: Sparse) -> jax.Array:
    """The transition `[.., S, A, S]` of a sparse one."""
    next_state, probability = _inner(transition)
    num_states = transition.num_states
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
    next_state = np.take_along_axis(next_state, order, -1)
    weight = np.take_along_axis(weight, order, -1)
    is_first = next_state >= 0
    is_first[..., 1:] &= next_state[..., 1:] != next_state[..., :-1]
    same = next_state[..., :, None] == next_state[..., None, :]  # [.., K, K]
    total = np.sum(same * weight[..., None, :], -1)
    return np.where(is_first, next_state, -1), np.where(is_first, total, 0.0)


def member_axes(transition: Any) -> Any:
    """What `vmap` maps of a dense or sparse ensemble: all but a shared `next_state`."""
    if not isinstance(transition, Sparse):
        return 0
    is_shared = transition.next_state.ndim < transition.probability.ndim
    return Sparse(None if is_shared else 0, 0)  # pyright: ignore[reportArgumentType]


def mean(transition: Sparse) -> Sparse:
    """The mean transition of an ensemble; of N * K successors if members have their own."""
    next_state, probability = transition
    if next_state.ndim < probability.ndim:
        return Sparse(next_state, probability.mean(0))

    def joined(x):
        return jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1)

    return Sparse(joined(next_state), joined(probability) / len(probability))


def _inner(transition: Sparse) -> tuple[jax.Array, jax.Array]:
    """Successors that are states, and their probabilities; NaN for impossible numbers."""
    next_state, probability = transition
    num_states = transition.num_states
    is_state = (next_state >= 0) & (next_state < num_states)
    ends = (next_state == -1) | (next_state == num_states)
    other = jnp.where(ends, 0.0, jnp.nan).astype(probability.dtype)
    return jnp.where(is_state, next_state, 0), jnp.where(is_state, probability, other)


def next_mean(transition: Sparse, v: jax.Array) -> jax.Array:
    """`[S, A]` mean of the value `[S]` of the next state."""
    next_state, probability = _inner(transition)
    return jnp.sum(probability * _look_up(v, next_state), -1)


def next_square(
    transition: Sparse, v: jax.Array, centre: jax.Array, within: jax.Array | float
) -> tuple[jax.Array, jax.Array]:
    """Mean square distance of the next state's value from a centre, of the mass that goes on.

    Args:
        transition: of one MDP.
        v: `[S]` values.
        centre: `[S, A]`.
        within: `[S]`, added to the squares.

    Returns:
        `[S, A]`, and the probability `[S, A]` of going on.
    """
    next_state, probability = _inner(transition)
    distance = jnp.square(_look_up(v, next_state) - centre[..., None])
    if jnp.ndim(within):
        distance = distance + _look_up(jnp.asarray(within), next_state)
    else:
        distance = distance + within
    return jnp.sum(probability * distance, -1), probability.sum(-1)


def _look_up(v: jax.Array, index: jax.Array) -> jax.Array:
    return v.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def under(transition: Sparse, policy: jax.Array) -> Flow:
    """The transitions of a policy `[S, A]`."""
    next_state, probability = _inner(transition)
    num_states = transition.num_states
    weight = policy[..., None] * probability
    return Flow(next_state.reshape(num_states, -1).T, weight.reshape(num_states, -1).T)


def chosen(transition: Sparse, policy: jax.Array) -> Flow:
    """The transitions of a deterministic policy `[S]` of actions."""
    state = jnp.arange(transition.num_states)
    next_state, probability = _inner(
        Sparse(
            transition.next_state[state, policy][:, None],
            transition.probability[state, policy][:, None],
        )
    )
    return Flow(next_state[:, 0].T, probability[:, 0].T)


def propagate(flow: Flow, x: jax.Array) -> jax.Array:
    """P x, `[S]`: the mean of x `[S]` at the next state."""
    if len(flow.next_state) > _UNROLLED:
        return jnp.sum(flow.probability * _look_up(x, flow.next_state), 0)
    total = jnp.zeros_like(x)
    for next_state, probability in zip(flow.next_state, flow.probability, strict=True):
        total = total + probability * _look_up(x, next_state)
    return total


def bands(flow: Flow) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Probabilities `[S]` of going to the state before, of staying, and of going to the next."""
    state = jnp.arange(flow.next_state.shape[-1])
    step = flow.next_state - state
    return tuple(jnp.sum(jnp.where(step == by, flow.probability, 0.0), 0) for by in (-1, 0, 1))


def to_scipy(flow: Flow) -> scipy.sparse.csr_matrix:
    """The matrix `[S, S]`, on the host."""
    next_state, probability = (np.asarray(x).T for x in flow)
    num_states, width = next_state.shape
    start = np.arange(num_states + 1) * width
    shape = (num_states, num_states)
    matrix = scipy.sparse.csr_matrix((probability.ravel(), next_state.ravel(), start), shape=shape)
    matrix.sum_duplicates()
    return matrix
