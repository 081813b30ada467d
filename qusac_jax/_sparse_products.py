"""Products of sparse transitions with values, in the order of memory that makes them fast.

`Columns` are for sums over the successors of every action, a `Flow` for those under a policy.
Axes: S states, A actions, K successors of a pair, N ensemble members.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from qusac_jax.sparse import Sparse, masses, states

_BLOCK = 512  # states whose successors fit into a cache
_UNROLLED = 64  # successors of a state up to which a product is a chain of vector operations


class Columns(NamedTuple):
    """A transition with the states last, so that a sum over successors works on whole vectors."""

    next_state: Any  # [A, K, S] in 0 .. S-1; may be shared by the members of an ensemble
    probability: Any  # [(N,) A, K, S] 0 for what ends the episode


class Flow(NamedTuple):
    """Transitions of a policy, in the form of `Columns`."""

    next_state: Any  # [A, K, S] in 0 .. S-1; may be shared by the members of an ensemble
    probability: Any  # [(N,) A, K, S] 0 for what ends the episode
    policy: Any  # [A, S]; a single row of ones if only the chosen action's successors are there


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
    if not isinstance(transition, Sparse | Columns | Flow):
        return jax.vmap(function)(transition, *arrays)
    form = type(transition)
    axes = _member_axes(transition)
    at_once = jax.vmap(function, in_axes=(axes, *(0 for _ in arrays)))

    def in_turn(transition, *arrays):
        own = [x for x, axis in zip(transition, axes, strict=True) if axis == 0]

        def one(each):
            own, arrays = iter(each[0]), each[1]
            parts = zip(transition, axes, strict=True)
            member = form(*(next(own) if axis == 0 else x for x, axis in parts))
            return function(member, *arrays)

        return jax.lax.map(one, (own, arrays))

    return jax.lax.platform_dependent(transition, *arrays, cpu=in_turn, default=at_once)


def _member_axes(transition: Sparse | Columns | Flow) -> Any:
    """The axis N of each array, None for what members share."""
    is_shared = transition.next_state.ndim < transition.probability.ndim
    rest = (None for _ in transition[2:])
    return type(transition)(None if is_shared else 0, 0, *rest)


def over_columns(function: Callable[..., Any], transition: Any, *arrays: jax.Array) -> Any:
    """`over_members` for a function of `Columns` in place of a `Sparse`."""
    if not isinstance(transition, Sparse):
        return over_members(function, transition, *arrays)
    is_shared = _member_axes(transition).next_state is None
    # Once for all members, and one array for the mean MDP too
    shared = _states_last(states, transition.next_state) if is_shared else None

    def one(member, *arrays):
        return function(columns(member, shared), *arrays)

    return over_members(one, transition, *arrays)


def _states_last(clean, next_state: jax.Array, *probability: jax.Array) -> jax.Array:
    """`[A, K, S]` of what `clean` makes of `[S, A, K]`."""
    # Here and not in the functions, which would hold on to an array that may be traced.
    num_states, *rest = next_state.shape

    def plain(*arrays):
        return jnp.moveaxis(clean(arrays[0], num_states, *arrays[1:]), -3, -1)

    def in_blocks(*arrays):
        # What leaves a loop is in memory: XLA would else take numbers out of their order anew in
        # each sum over them, which takes ten times as long as the sum.
        block = min(_BLOCK, num_states)

        def move(i, moved):
            first = jnp.minimum(i * block, num_states - block)
            parts = [jax.lax.dynamic_slice_in_dim(x, first, block) for x in arrays]
            part = jnp.moveaxis(clean(parts[0], num_states, *parts[1:]), -3, -1)
            return jax.lax.dynamic_update_slice_in_dim(moved, part, first, -1)

        moved = jnp.zeros((*rest, num_states), arrays[-1].dtype)
        return jax.lax.fori_loop(0, -(-num_states // block), move, moved)

    @jax.custom_jvp
    def move(*arrays):
        return jax.lax.platform_dependent(*arrays, cpu=in_blocks, default=plain)

    @move.defjvp
    def _(arrays, changes):
        # Not through the loop: backwards, it would keep every block.
        change = jax.jvp(lambda *x: plain(arrays[0], *x), arrays[1:], changes[1:])[1]
        return move(*arrays), change

    return (
        move(next_state, *probability) if probability else jax.lax.stop_gradient(move(next_state))
    )


def columns(transition: Sparse | Columns, next_state: jax.Array | None = None) -> Columns:
    """The form for sums over successors.

    Args:
        transition: of one MDP.
        next_state: that of the result, where it is known.
    """
    if isinstance(transition, Columns):
        return transition
    own, probability = map(jnp.asarray, transition)
    if next_state is None:
        next_state = _states_last(states, own)
    return Columns(next_state, _states_last(masses, own, probability))


def next_mean(transition: Sparse | Columns, v: jax.Array) -> jax.Array:
    """`[S, A]` mean of the value `[S]` of the next state."""
    return _sum_over_successors(transition, lambda mass, index: mass * _look_up(v, index))


def next_distance(
    transition: Sparse | Columns, v: jax.Array, centre: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean distance of the next state's value from a centre, as `next_square`."""
    return (
        _sum_over_successors(transition, lambda mass, i, c: mass * (_look_up(v, i) - c), centre),
        _sum_over_successors(transition, lambda mass, _: mass),
    )


def next_square(
    transition: Sparse | Columns, v: jax.Array, centre: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean square distance of the next state's value from a centre, of the mass that goes on.

    Args:
        transition: of one MDP.
        v: `[S]` values.
        centre: `[S, A]`.

    Returns:
        `[S, A]`, and the probability `[S, A]` of going on.
    """

    def square(mass, index, centre):
        return mass * jnp.square(_look_up(v, index) - centre)

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
    return Flow(*columns(transition), policy.T)


def chosen(transition: Sparse, policy: jax.Array) -> Flow:
    """The transitions of a deterministic policy `[S]` of actions."""
    num_states = transition.num_states
    state = jnp.arange(num_states)
    next_state, probability = (x[state, policy].T[None] for x in map(jnp.asarray, transition))
    mass = masses(next_state, num_states, probability)
    return Flow(states(next_state, num_states), mass, jnp.ones_like(mass[0, :1]))


def chosen_of_members(transition: Sparse, policy: jax.Array) -> Flow:
    """`chosen` of N members, whose successors are shared or not, as they are there."""
    axes = _member_axes(transition)
    out = Flow(axes.next_state, axes.probability, None)
    return jax.vmap(chosen, in_axes=(axes, None), out_axes=out)(transition, policy)


def propagate(flow: Flow, x: jax.Array) -> jax.Array:
    """P x, `[S]`: the mean of x `[S]` at the next state."""
    return _sum_under_policy(flow, lambda mass, index: mass * _look_up(x, index))


def mass(flow: Flow) -> jax.Array:
    """`[S]` probability that the episode goes on."""
    return _sum_under_policy(flow, lambda mass, _: mass)


def bands(flow: Flow) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Probabilities `[S]` of going to the state before, of staying, and of going to the next."""
    state = jnp.arange(flow.next_state.shape[-1], dtype=flow.next_state.dtype)

    # A loop: XLA would else keep what all members have in common, a vector per successor.
    def add(action, sums):
        one = Flow(*(jax.lax.dynamic_slice_in_dim(x, action, 1) for x in flow))
        to = lambda step: _sum_under_policy(one, lambda m, i: jnp.where(i == step, m, 0.0))
        return [total + to(state + step) for total, step in zip(sums, (-1, 0, 1), strict=True)]

    zeros = jnp.zeros(state.shape, flow.probability.dtype)
    before, stay, after = jax.lax.fori_loop(0, len(flow.policy), add, [zeros] * 3)
    return before, stay, after


def _sum_under_policy(flow: Flow, term: Callable[..., jax.Array]) -> jax.Array:
    """`[S]` sum of `term`, of probabilities and successors, weighted by the policy."""
    next_state, probability, policy = flow
    num_actions, num_successors, _ = probability.shape
    if num_actions * num_successors > _UNROLLED:
        return jnp.sum(policy * jnp.sum(term(probability, next_state), 1), 0)
    sums = []
    for action in range(num_actions):
        rows = zip(probability[action], next_state[action], strict=True)
        own = functools.reduce(jnp.add, (term(*row) for row in rows))
        sums.append(policy[action] * own)
    return functools.reduce(jnp.add, sums)


def to_scipy(flow: Flow) -> scipy.sparse.csr_matrix:
    """The matrix `[S, S]`, on the host."""
    next_state, probability, policy = map(np.asarray, flow)
    next_state, probability = (
        x.reshape(-1, x.shape[-1]).T for x in (next_state, policy[:, None] * probability)
    )
    num_states, width = next_state.shape
    start = np.arange(num_states + 1) * width
    shape = (num_states, num_states)
    matrix = scipy.sparse.csr_matrix((probability.ravel(), next_state.ravel(), start), shape=shape)
    matrix.sum_duplicates()
    return matrix
