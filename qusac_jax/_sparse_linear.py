"""Sparse systems (I - discount * P) x = b of absorbing Markov chains, solved by BiCGStab.

The preconditioner is the tridiagonal part of the system, which is all of a chain's or queue's and
the rows of a grid, where enough of the flow is in it; elsewhere it is the diagonal. The inverse of
such a matrix has no negative entry, as the inverse of the system itself.

Axes: S states, J right-hand sides, N systems.
"""

import functools

import jax
import jax.numpy as jnp

from qusac_jax import _bicgstab, _control, sparse
from qusac_jax.sparse import Flow

_TOLERANCE = {4: 1e-6, 8: 1e-12}  # of residuals, by bytes of a number
_STEPS_TOLERANCE = 1e-4  # for expected steps, of which the size matters
_MAX_ITERATIONS = 5000
_ROUND_LENGTH = 1000
# Share of the flow that goes to a neighbour in the order of the states, from which on solving the
# tridiagonal part saves more than it costs.
_CHAIN_SHARE = 0.3


def solve(flow: Flow, rhs: jax.Array, discount) -> tuple[jax.Array, jax.Array, jax.Array]:
    """x `[S, J]` for `rhs` `[S, J]`, largest residual and expected discounted steps.

    The last is infinity where BiCGStab did not converge. Gradients by it are solutions of the
    transposed system, and NaN where that did not converge.
    """
    fixed, fixed_discount = jax.lax.stop_gradient((flow, discount))
    tolerance = _TOLERANCE[rhs.dtype.itemsize]

    def solve_by(precondition, apply, b):
        x, residual, _ = _iterate(apply, b, (jnp.zeros_like(b), b), tolerance, precondition)
        failed = _bicgstab.is_open(x, residual, _bicgstab.norm(b), tolerance)
        return x, (jnp.max(jnp.abs(residual)), failed)

    def solve_transposed(apply, b):
        backwards = _preconditioner(fixed, fixed_discount, transposed=True)
        x, (residual, failed) = solve_by(backwards, apply, b)
        return jnp.where(failed, jnp.nan, x), (residual, failed)

    precondition = _preconditioner(fixed, fixed_discount)
    x, (residual, failed) = jax.lax.custom_linear_solve(
        lambda x: _apply(flow, discount, x),
        rhs.T,
        solve=functools.partial(solve_by, precondition),
        transpose_solve=solve_transposed,
        has_aux=True,
    )
    steps = _steps(fixed, fixed_discount, precondition)
    condition = jnp.where(failed, jnp.inf, steps)
    return x.T, *jax.lax.stop_gradient((residual, condition))


def solve_warm(flow: Flow, rhs: jax.Array, discount, start: jax.Array):
    """N systems from an initial guess `[N, S]`; not differentiable.

    Args:
        flow: that the systems share, or of N members.
        rhs: `[N, S]`.
        discount: in [0, 1].
        start: `[N, S]`.

    Returns:
        x `[N, S]`, the iterations of the slowest system, and whether one is not solved.
    """

    def one(flow, rhs, start):
        tolerance = _TOLERANCE[rhs.dtype.itemsize]
        apply = lambda x: _apply(flow, discount, x)
        precondition = _preconditioner(flow, discount)
        start = start[None], rhs - apply(start[None])
        x, residual, count = _iterate(apply, rhs[None], start, tolerance, precondition)
        failed = _bicgstab.is_open(x, residual, _bicgstab.norm(rhs[None]), tolerance)
        return x[0], count, failed

    if flow.probability.ndim == 3:
        x, count, failed = jax.vmap(one, in_axes=(None, 0, 0))(flow, rhs, start)
    else:
        x, count, failed = sparse.over_members(one, flow, rhs, start)
    return x, count.max(), failed.any()


def _apply(flow, discount, x):
    """(I - discount * P) x for `[J, S]`."""
    return x - discount * jax.vmap(sparse.propagate, in_axes=(None, 0))(flow, x)


def _iterate(apply, rhs, start, tolerance, precondition):
    return _bicgstab.solve(
        apply,
        rhs,
        start,
        tolerance=tolerance,
        max_iterations=_MAX_ITERATIONS,
        precondition=precondition,
        round_length=_ROUND_LENGTH,
        # XLA vectorizes no sum of products on CPU
        dot=functools.partial(jnp.einsum, "ns,ns->n", precision="highest"),
        half_steps=True,
    )


def _steps(flow, discount, precondition):
    """Expected discounted steps from the worst state; infinity where BiCGStab fails."""
    # The answer where no state ends the episode more often than the others, and a bound else.
    leak = 1 - discount * sparse.mass(flow)[None]
    guess = 1 / jnp.maximum(leak.min(), jnp.sqrt(jnp.finfo(leak.dtype).eps))
    ones = jnp.ones_like(leak)
    start = guess * ones, ones - guess * leak
    apply = lambda x: _apply(flow, discount, x)
    steps, residual, _ = _iterate(apply, ones, start, _STEPS_TOLERANCE, precondition)
    failed = _bicgstab.is_open(steps, residual, _bicgstab.norm(ones), _STEPS_TOLERANCE)
    return jnp.where(failed, jnp.inf, steps.max())


def _preconditioner(flow, discount, *, transposed=False):
    """An approximate inverse of the system, `[J, S]` to `[J, S]`."""
    before, stay, after = sparse.bands(flow)
    is_chain = jnp.mean(before + after) > _CHAIN_SHARE * jnp.mean(sparse.mass(flow))
    if transposed:
        before, after = jnp.roll(after, 1), jnp.roll(before, -1)
    lower, diagonal, upper = -discount * before, 1 - discount * stay, -discount * after

    def precondition(x):
        def solve_bands(scaled):
            rhs = (scaled * diagonal).T
            return jax.lax.linalg.tridiagonal_solve(lower, diagonal, upper, rhs).T

        return _control.apply_if(is_chain, solve_bands, x / diagonal)

    return precondition
