"""Transitions with K successors per state and action, and their products with values.

Axes: S states, A actions, K successors of a pair, N ensemble members, M = A * K successors of a
state. Missing mass is termination.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from qusac_jax import _members

_BLOCK = 512  # states whose successors fit into a cache
_UNROLLED = 64  # successors of a state up to which a product is a chain of vector operations


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


class Columns(NamedTuple):
    """A transition with the states last, so that a sum over successors works on whole vectors."""

    next_state: Any  # [A, K, S] in 0 .. S-1; may be shared by the members of an ensemble
    probability: Any  # [(N,) A, K, S] 0 for what ends the episode


class Flow(NamedTuple):
    """Transitions of a policy; successors lead, as in `Columns`."""

    next_state: Any  # [M, S] in 0 .. S-1
    probability: Any  # [M, S] 0 for what ends the episode


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
    next_state, probability = _states(transition), _masses(transition)
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


def member(transition: Any, index: int) -> Any:
    """One MDP's transition of a dense or sparse ensemble."""
    if not isinstance(transition, Sparse):
        return transition[index]
    next_state, probability = transition
    is_shared = next_state.ndim < probability.ndim
    return Sparse(next_state if is_shared else next_state[index], probability[index])


def over_members(function: Callable[..., Any], transition: Any, *arrays: jax.Array) -> Any:
    """`function` of each member's transition and entry of the arrays.

    On CPU, sparse members are taken in turn: memory beside the ensemble is then that of one, whose
    vectors stay in the cache, and none waits for another's iterations.

    Args:
        function: of the transition of one MDP, and of what each array holds for it.
        transition: dense `[N, S, A, S]`, a `Sparse`, or a `Flow` of N members.
        arrays: `[N, ...]` each.

    Returns:
        What `function` returns, with a leading axis N.
    """
    if not isinstance(transition, Sparse | Flow):
        return jax.vmap(function)(transition, *arrays)
    form = type(transition)
    is_shared = transition.next_state.ndim < transition.probability.ndim
    axes = form(None if is_shared else 0, 0)
    at_once = jax.vmap(function, in_axes=(axes, *(0 for _ in arrays)))

    def in_turn(transition, *arrays):
        shared = transition.next_state if is_shared else None
        each = (transition.probability, *arrays) if is_shared else (*transition, *arrays)

        def one(each):
            own, probability, *others = (shared, *each) if is_shared else each
            return function(form(own, probability), *others)

        return jax.lax.map(one, each)

    return jax.lax.platform_dependent(transition, *arrays, cpu=in_turn, default=at_once)


def over_columns(function: Callable[..., Any], transition: Any, *arrays: jax.Array) -> Any:
    """`over_members` for a function of `Columns` in place of a `Sparse`."""
    if not isinstance(transition, Sparse):
        return over_members(function, transition, *arrays)
    is_shared = transition.next_state.ndim < transition.probability.ndim
    # Once for all members, and one array for the mean MDP too
    shared = _states_last(_states(transition)) if is_shared else None

    def one(member, *arrays):
        next_state = _states_last(_states(member)) if shared is None else shared
        return function(Columns(next_state, _states_last(_masses(member))), *arrays)

    return over_members(one, transition, *arrays)


def mean(transition: Sparse) -> Sparse:
    """The mean transition of an ensemble; of N * K successors if members have their own."""
    next_state, probability = transition
    if next_state.ndim < probability.ndim:
        return Sparse(next_state, _members.mean(probability))

    def joined(x):
        return jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1)

    return Sparse(joined(next_state), joined(probability) / len(probability))


def _states(transition: Sparse) -> jax.Array:
    """Successors, in 0 .. S-1: 0 in place of those that are no state."""
    next_state = jnp.asarray(transition.next_state)
    is_state = (next_state >= 0) & (next_state < transition.num_states)
    return jnp.where(is_state, next_state, 0)


def _masses(transition: Sparse) -> jax.Array:
    """Probabilities of successors that are states, else 0; NaN for impossible numbers."""
    next_state, probability = map(jnp.asarray, transition)
    num_states = transition.num_states
    is_state = (next_state >= 0) & (next_state < num_states)
    ends = (next_state == -1) | (next_state == num_states)
    other = jnp.where(ends, 0.0, jnp.nan).astype(probability.dtype)
    return jnp.where(is_state, probability, other)


@jax.custom_jvp
def _states_last(x: jax.Array) -> jax.Array:
    """`[.., A, K, S]` of `[.., S, A, K]`."""
    plain = lambda x: jnp.moveaxis(x, -3, -1)
    return jax.lax.platform_dependent(x, cpu=_states_last_in_blocks, default=plain)


@_states_last.defjvp
def _(primals, tangents):
    (x,), (change,) = primals, tangents
    plain = change if change.dtype == jax.dtypes.float0 else jnp.moveaxis(change, -3, -1)
    return _states_last(x), plain


def _states_last_in_blocks(x: jax.Array) -> jax.Array:
    # What leaves a loop is in memory: XLA would else take numbers out of their order anew in each
    # sum over them, which takes ten times as long as the sum.
    *batch, num_states, num_actions, num_successors = x.shape
    block = min(_BLOCK, num_states)

    def move(i, moved):
        first = jnp.minimum(i * block, num_states - block)
        part = jax.lax.dynamic_slice_in_dim(x, first, block, -3)
        part = jnp.moveaxis(part, -3, -1)
        return jax.lax.dynamic_update_slice_in_dim(moved, part, first, -1)

    moved = jnp.zeros((*batch, num_actions, num_successors, num_states), x.dtype)
    return jax.lax.fori_loop(0, -(-num_states // block), move, moved)


def columns(transition: Sparse | Columns) -> Columns:
    """The form for sums over successors, of one MDP or of an ensemble."""
    if isinstance(transition, Columns):
        return transition
    return Columns(_states_last(_states(transition)), _states_last(_masses(transition)))


def next_mean(transition: Sparse | Columns, v: jax.Array) -> jax.Array:
    """`[S, A]` mean of the value `[S]` of the next state."""
    return _sum_over_successors(transition, lambda mass, index: mass * _look_up(v, index))


def next_square(
    transition: Sparse | Columns, v: jax.Array, centre: jax.Array, within: jax.Array | float
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

    def square(mass, index, centre):
        distance = jnp.square(_look_up(v, index) - centre)
        spread = _look_up(jnp.asarray(within), index) if jnp.ndim(within) else within
        return mass * (distance + spread)

    return (
        _sum_over_successors(transition, square, centre),
        _sum_over_successors(transition, lambda mass, _: mass),
    )


def _sum_over_successors(
    transition: Sparse | Columns, term: Callable[..., jax.Array], *arrays: jax.Array
) -> jax.Array:
    """`[S, A]` sum of `term`, of probabilities, successors and entries of arrays `[S, A]`."""
    next_state, probability = columns(transition)
    num_actions, num_successors, _ = probability.shape
    if num_actions * num_successors > _UNROLLED:
        each = (array.T[:, None] for array in arrays)
        return jnp.sum(term(probability, next_state, *each), 1).T
    sums = []
    for action in range(num_actions):
        own = [array[:, action] for array in arrays]
        rows = zip(probability[action], next_state[action], strict=True)
        sums.append(functools.reduce(jnp.add, (term(*row, *own) for row in rows)))
    return jnp.stack(sums, -1)


def _look_up(v: jax.Array, index: jax.Array) -> jax.Array:
    return v.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def under(transition: Sparse | Columns, policy: jax.Array) -> Flow:
    """The transitions of a policy `[S, A]`."""
    next_state, probability = columns(transition)
    weighted = policy.T[:, None] * probability
    return Flow(*(x.reshape(-1, x.shape[-1]) for x in (next_state, weighted)))


def chosen(transition: Sparse, policy: jax.Array) -> Flow:
    """The transitions of a deterministic policy `[S]` of actions."""
    state = jnp.arange(transition.num_states)
    rows = Sparse(
        transition.next_state[state, policy][:, None],
        transition.probability[state, policy][:, None],
    )
    return Flow(_states(rows)[:, 0].T, _masses(rows)[:, 0].T)


def chosen_of_members(transition: Sparse, policy: jax.Array) -> Flow:
    """`chosen` of N members, `[M, S]` of shared successors or `[N, M, S]`."""
    axis = None if transition.next_state.ndim < transition.probability.ndim else 0
    own = Sparse(axis, 0)
    out = Flow(axis, 0)
    return jax.vmap(chosen, in_axes=(own, None), out_axes=out)(transition, policy)


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
    if len(flow.next_state) > _UNROLLED:
        step = flow.next_state - state
        to = lambda by: jnp.sum(jnp.where(step == by, flow.probability, 0.0), 0)
        return to(-1), to(0), to(1)
    sums = [jnp.zeros_like(flow.probability[0])] * 3
    for next_state, probability in zip(flow.next_state, flow.probability, strict=True):
        step = next_state - state
        terms = [jnp.where(step == by, probability, 0.0) for by in (-1, 0, 1)]
        sums = [total + term for total, term in zip(sums, terms, strict=True)]
    return sums[0], sums[1], sums[2]


def to_scipy(flow: Flow) -> scipy.sparse.csr_matrix:
    """The matrix `[S, S]`, on the host."""
    next_state, probability = (np.asarray(x).T for x in flow)
    num_states, width = next_state.shape
    start = np.arange(num_states + 1) * width
    shape = (num_states, num_states)
    matrix = scipy.sparse.csr_matrix((probability.ravel(), next_state.ravel(), start), shape=shape)
    matrix.sum_duplicates()
    return matrix
