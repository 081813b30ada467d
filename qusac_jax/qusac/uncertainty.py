"""Local uncertainty rewards: what a method calls uncertain about one step.

Variances over members divide by N - 1, so that few members do not look certain; one member
alone has variance 0. Axes: N members, B batch, K actions per next state.
"""

import jax
import jax.numpy as jnp


def member_variance(x: jax.Array) -> jax.Array:
    """Unbiased variance over the leading member axis, `[N, ...] -> [...]`."""
    return jnp.var(x, axis=0, ddof=min(1, x.shape[0] - 1))


def ensemble_var(q: jax.Array) -> jax.Array:
    """Variance of the critics at (s, a), eq. (10).

    The whole estimate of U for `ensemble_var`, and the local uncertainty w_ub that
    `upper_bound` propagates.

    Args:
        q: `[N, B]` members' values.

    Returns:
        `[B]`, at least 0.
    """
    return member_variance(q)


def pombu(next_q_mean: jax.Array) -> jax.Array:
    """Variance over members of the next step's mean value: ŵ before eq. (10), for w of eq. (3).

    Args:
        next_q_mean: `[N, B]` mean over the critics of Q(s'_i, a'_i), with s'_i the mean prediction
            of member i and a'_i drawn from the policy.

    Returns:
        `[B]`, at least 0.
    """
    return member_variance(next_q_mean)


def gap(next_q: jax.Array) -> jax.Array:
    """Aleatoric variance that pombu mistakes for epistemic, g of Theorem 2 in Q-form (app. B.2).

    E_i[Var_a'(Q_i(s'_i, a') - mean_j Q_j(s'_i, a'))], with the variance over actions drawn from
    the policy at member i's next state.

    Args:
        next_q: `[N, N, K, B]`: critic i's value, leading, of K actions at member j's next state.

    Returns:
        `[B]`, at least 0.
    """
    difference = next_q - jnp.mean(next_q, axis=0)
    own = jnp.diagonal(difference, axis1=0, axis2=1)  # [K, B, N]
    return jnp.mean(jnp.var(own, axis=0, ddof=1), axis=-1)


def exact_ube(next_q: jax.Array) -> jax.Array:
    """Local uncertainty whose propagation gives the posterior variance, u of eq. (6) = w - g.

    Clipped at 0, as the U-net represents variances only.

    Args:
        next_q: `[N, N, K, B]` as for `gap`; w's expectation over actions is the mean over K.

    Returns:
        `[B]`, at least 0.
    """
    mean_at_own_state = jnp.mean(next_q, axis=(0, 2))  # [N, B]
    return jnp.maximum(pombu(mean_at_own_state) - gap(next_q), 0.0)
