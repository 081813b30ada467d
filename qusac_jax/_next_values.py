"""Mean and variance of the next value, and the local uncertainty that is made of them.

A transition is an array `[S, A, S]` or a `sparse.Sparse`. Missing mass is termination, where the
value is 0. Axes: S states, A actions, N ensemble members.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from qusac_jax import sparse

# Of a row's missing mass, in machine epsilons: what rounding alone can make of a sum of 1.
_ROUNDING_ERRORS = 10

average = functools.partial(jnp.einsum, precision="highest")


def flow_of(transition: jax.Array | sparse.Sparse, policy: jax.Array) -> jax.Array | sparse.Flow:
    """Transitions `[S, S]` of a policy `[S, A]`, in the form of `transition`."""
    if isinstance(transition, sparse.Sparse):
        return sparse.under(transition, policy)
    # Not a product: of many members, XLA's on CPU takes 7 times as long.
    return jnp.sum(policy[..., None] * transition, axis=1)


def mean_of_members(transition: jax.Array | sparse.Sparse) -> Any:
    """The mean transition of an ensemble."""
    if isinstance(transition, sparse.Sparse):
        return sparse.mean(transition)
    # XLA's sum over a leading axis takes 20 times as long on CPU: it leaves the order of memory.
    total = jax.lax.platform_dependent(transition, cpu=_sum_in_turn, default=lambda x: x.sum(0))
    return total / len(transition)


def _sum_in_turn(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda total, part: (total + part, None), x[0], x[1:])[0]


def next_mean(transition: jax.Array | sparse.Sparse, v: jax.Array) -> jax.Array:
    """`[S, A]` mean of the value `[S]` of the next state."""
    if isinstance(transition, sparse.Sparse):
        return sparse.next_mean(transition, v)
    return average("sat,t->sa", transition, v)


def next_variance(
    transition: jax.Array | sparse.Sparse,
    v: jax.Array,
    centre: jax.Array,
    within: jax.Array | float = 0.0,
) -> jax.Array:
    """`[S, A]` mean square distance of the value of the next state from a centre.

    The second moment minus the squared mean would lose, in float32, what is small beside the values
    themselves.

    Args:
        transition: of one MDP.
        v: `[S]` values.
        centre: `[S, A]`; with `next_mean`, the result is the variance.
        within: `[S]` variance of the value at the next state, added to the distance.

    Returns:
        `[S, A]`, at least 0.
    """
    if isinstance(transition, sparse.Sparse):
        going_on, mass = sparse.next_square(transition, v, centre, within)
        return going_on + _missing(mass) * jnp.square(centre)
    missing = _missing(transition.sum(-1))
    distance = jnp.square(v - centre[..., None]) + within
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


def moments_of_v(transition, policy, v):
    """Mean and variance `[S]` of V(s') over a and s'."""
    mean = over_actions(policy, next_mean(transition, v))
    centre = jnp.broadcast_to(mean[:, None], policy.shape)
    return mean, over_actions(policy, next_variance(transition, v, centre))


def moments_of_q(transition, policy, q):
    """Mean and variance `[S, A]` of Q(s', a') over s' and a'."""
    v = over_actions(policy, q)
    within = over_actions(policy, jnp.square(q - v[:, None]))
    mean = next_mean(transition, v)
    return mean, next_variance(transition, v, mean, within)


def local_uncertainty(form, next_moments, ensemble, members, mean):
    """Local uncertainty of V or Q; a UBE propagates discount^2 times it.

    Args:
        form: "total", "gap" or "difference", as for `ube.solve_exact`; "pombu" or "upper_bound".
        next_moments: `moments_of_v` or `moments_of_q`.
        ensemble: transitions of N members, their mean, and the policy `[S, A]`.
        members: `[N, S]` V or `[N, S, A]` Q of each member.
        mean: `[S]` or `[S, A]`, of the mean MDP.

    Returns:
        `[S]` or `[S, A]`.
    """
    transition, mean_transition, policy = ensemble
    if form == "upper_bound":
        return members.var(0)

    def aleatoric(transition, value):
        return next_moments(transition, policy, value)[1]

    def of_members(value):  # each member's transition and value
        return sparse.over_members(aleatoric, transition, value)

    def of_mean(value):  # each member's transition, the mean value
        return sparse.over_members(lambda member: aleatoric(member, value), transition)

    if form == "total":
        return aleatoric(mean_transition, mean) - of_members(members).mean(0)
    expected = lambda member: next_moments(member, policy, mean)[0]
    w = sparse.over_members(expected, transition).var(0)
    if form == "pombu":
        return w
    gap = of_members(members) - of_mean(mean) if form == "gap" else of_members(members - mean)
    return w - gap.mean(0)
