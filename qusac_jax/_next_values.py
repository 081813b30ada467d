"""Mean and variance of the next value, and the local uncertainty that is made of them.

A transition is an array `[S, A, S]` or a `sparse.Sparse`. Missing mass is termination, where the
value is 0. Axes: S states, A actions, N ensemble members.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from qusac_jax import _members, _sparse_products, sparse
from qusac_jax._sparse_products import Columns, Flow

# Of a row's missing mass, in machine epsilons: what rounding alone can make of a sum of 1.
_ROUNDING_ERRORS = 10

average = functools.partial(jnp.einsum, precision="highest")


def flow_of(transition: jax.Array | sparse.Sparse | Columns, policy: jax.Array) -> jax.Array | Flow:
    """Transitions `[S, S]` of a policy `[S, A]`, in the form of `transition`."""
    if isinstance(transition, sparse.Sparse | Columns):
        return _sparse_products.under(transition, policy)
    # Not a product: of many members, XLA's on CPU takes 7 times as long.
    return jnp.sum(policy[..., None] * transition, axis=1)


def mean_of_members(transition: jax.Array | sparse.Sparse) -> Any:
    """The mean transition of an ensemble."""
    if isinstance(transition, sparse.Sparse):
        return sparse.mean(transition)
    return _members.mean(transition)


def next_mean(transition: jax.Array | sparse.Sparse | Columns, v: jax.Array) -> jax.Array:
    """`[S, A]` mean of the value `[S]` of the next state."""
    if isinstance(transition, sparse.Sparse | Columns):
        return _sparse_products.next_mean(transition, v)
    return average("sat,t->sa", transition, v)


def next_distance(
    transition: jax.Array | sparse.Sparse | Columns, v: jax.Array, centre: jax.Array
) -> jax.Array:
    """`[S, A]` mean of the value of the next state, less a centre.

    By the distances of the values: in float32, the difference of two means would lose what is small
    beside the values themselves.

    Args:
        transition: of one MDP.
        v: `[S]` values.
        centre: `[S, A]`.
    """
    if isinstance(transition, sparse.Sparse | Columns):
        going_on, mass = _sparse_products.next_distance(transition, v, centre)
        return going_on - _missing(mass) * centre
    distance = v[None, None, :] - centre[..., None]
    going_on = jnp.sum(transition * distance, -1)
    return going_on - _missing(transition.sum(-1)) * centre


def next_variance(
    transition: jax.Array | sparse.Sparse | Columns,
    v: jax.Array,
    centre: jax.Array,
    missing: jax.Array | None = None,
) -> jax.Array:
    """`[S, A]` mean square distance of the value of the next state from a centre.

    The second moment minus the squared mean would lose, in float32, what is small beside the values
    themselves.

    Args:
        transition: of one MDP.
        v: `[S]` values.
        centre: `[S, A]`; with `next_mean`, the result is the variance.
        missing: `[S, A]` missing mass of dense rows; by default what they lack of 1, of which
            rounding leaves nothing where it is small.

    Returns:
        `[S, A]`, at least 0.
    """
    if isinstance(transition, sparse.Sparse | Columns):
        going_on, mass = _sparse_products.next_square(transition, v, centre)
        return going_on + _missing(mass) * jnp.square(centre)
    missing = _missing(transition.sum(-1)) if missing is None else missing
    distance = jnp.square(v[None, None, :] - centre[..., None])
    return jnp.sum(transition * distance, -1) + missing * jnp.square(centre)


def _missing(mass: jax.Array) -> jax.Array:
    """The rest of rows that sum to `mass`."""
    exact = 1.0 - mass
    # A row that should sum to 1 does so up to rounding, which large values must not multiply.
    missing = jnp.where(exact > _ROUNDING_ERRORS * jnp.finfo(mass.dtype).eps, exact, 0.0)
    return with_derivative_of(exact, missing)


def with_derivative_of(exact: jax.Array, cleaned: jax.Array) -> jax.Array:
    """The value of `cleaned`, which is `exact` without its rounding errors, and its derivative.

    The derivative of the cleaning itself would be 0 (or a half) at the border of what is possible:
    at rows that sum to 1, for which mass can still go missing, and at variances of 0.
    """
    return exact + jax.lax.stop_gradient(cleaned - exact)


def over_actions(policy: jax.Array, x: jax.Array) -> jax.Array:
    """`[..., S]` mean of `x` `[..., S, A]` over the actions of a policy `[S, A]`."""
    return average("sa,...sa->...s", policy, x)


class Forms(NamedTuple):
    """A quantity of states, and of states and actions."""

    v: jax.Array  # [S]
    q: jax.Array  # [S, A]


class Part(NamedTuple):
    """What one member adds to the local uncertainty; None where the form does not need it."""

    # Mean value of the next state, by the values of the mean MDP, less a constant of all members
    expected: Forms | None = None
    # To be averaged and subtracted
    subtracted: Forms | None = None
    # The member's value less that of the mean MDP
    difference: Forms | None = None


def next_moments(transition, policy: jax.Array, value: Forms) -> tuple[Forms, Forms]:
    """Mean and variance of V(s') over a and s', and of Q(s', a') over s' and a'.

    Args:
        transition: of one MDP.
        policy: `[S, A]`.
        value: V and Q of one policy, so that V is the mean of Q over its actions.
    """
    within = over_actions(policy, jnp.square(value.q - value.v[:, None]))
    mean = next_mean(transition, value.v)
    spread = next_variance(transition, value.v, mean)
    mean_v = over_actions(policy, mean)
    # Total variance: within the actions, and between them
    spread_v = over_actions(policy, spread + jnp.square(mean - mean_v[:, None]))
    return Forms(mean_v, mean), Forms(spread_v, spread + next_mean(transition, within))


def local_part(
    form: str, transition, policy: jax.Array, difference: Forms, mean: Forms, distance: jax.Array
) -> Part:
    """One member's share in the local uncertainty, for `local_uncertainty`.

    Args:
        form: as there.
        transition: the member's.
        policy: `[S, A]`.
        difference: the member's value less that of the mean MDP.
        mean: value of the mean MDP.
        distance: `[S, A]` mean of that at the member's next state, less a constant of all members.
    """
    spread_of = lambda value: next_moments(transition, policy, value)[1]
    value = jax.tree.map(jnp.add, mean, difference)
    if form == "upper_bound":
        return Part(difference=difference)
    if form == "total":
        return Part(subtracted=spread_of(value))
    expected = Forms(over_actions(policy, distance), distance)
    if form == "pombu":
        return Part(expected)
    if form == "gap":
        return Part(expected, jax.tree.map(jnp.subtract, spread_of(value), spread_of(mean)))
    return Part(expected, spread_of(difference))


def local_uncertainty(form: str, parts: Part, mean_transition, policy: jax.Array, mean: Forms):
    """Local uncertainties, discount^2 times which a UBE propagates.

    Args:
        form: "total", "gap" or "difference", as for `ube.solve_exact`; "pombu" or "upper_bound".
        parts: of N members, with a leading axis.
        mean_transition: of the mean MDP.
        policy: `[S, A]`.
        mean: value of the mean MDP.

    Returns:
        `Forms`.
    """
    if form == "upper_bound":
        return jax.tree.map(_members.variance, parts.difference)
    if form == "pombu":
        return jax.tree.map(_members.variance, parts.expected)
    subtracted = jax.tree.map(_members.mean, parts.subtracted)
    if form == "total":
        spread = next_moments(mean_transition, policy, mean)[1]
    else:
        spread = jax.tree.map(_members.variance, parts.expected)
    return jax.tree.map(jnp.subtract, spread, subtracted)
