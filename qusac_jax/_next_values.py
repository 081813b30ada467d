"""Mean and variance of the next value under rows of probabilities.

Missing mass is termination, where the value is 0. Axes: S states, A actions.
"""

import functools

import jax
import jax.numpy as jnp

# Of a row's missing mass, in machine epsilons: what rounding alone can make of a sum of 1.
_ROUNDING_ERRORS = 10

average = functools.partial(jnp.einsum, precision="highest")


def next_mean(transition: jax.Array, v: jax.Array) -> jax.Array:
    """`[S, A]` mean of the value `[S]` of the next state, `transition` `[S, A, S]`."""
    return average("sat,t->sa", transition, v)


def next_variance(
    transition: jax.Array, v: jax.Array, centre: jax.Array, within: jax.Array | float = 0.0
) -> jax.Array:
    """`[S, A]` mean square distance of the value of the next state from a centre.

    The second moment minus the squared mean would lose, in float32, what is small beside the values
    themselves.

    Args:
        transition: `[S, A, S]`.
        v: `[S]` values.
        centre: `[S, A]`; with `next_mean`, the result is the variance.
        within: `[S]` variance of the value at the next state, added to the distance.

    Returns:
        `[S, A]`, at least 0.
    """
    exact = 1.0 - transition.sum(-1)
    # A row that should sum to 1 does so up to rounding, which large values must not multiply.
    missing = jnp.where(exact > _ROUNDING_ERRORS * jnp.finfo(transition.dtype).eps, exact, 0.0)
    missing = with_derivative_of(exact, missing)
    distance = jnp.square(v - centre[..., None]) + within
    return jnp.sum(transition * distance, -1) + missing * jnp.square(centre)


def with_derivative_of(exact: jax.Array, cleaned: jax.Array) -> jax.Array:
    """The value of `cleaned`, which is `exact` without its rounding errors, and its derivative.

    The derivative of the cleaning itself would be 0 (or a half) at the border of what is possible:
    at rows that sum to 1, for which mass can still go missing, and at variances of 0.
    """
    return exact + jax.lax.stop_gradient(cleaned - exact)


def over_actions(policy: jax.Array, x: jax.Array) -> jax.Array:
    """`[..., S]` mean of `x` `[..., S, A]` over the actions of a policy `[S, A]`."""
    return average("sa,...sa->...s", policy, x)
