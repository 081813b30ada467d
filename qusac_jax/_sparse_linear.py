"""Sparse systems (I - discount * P) x = b of absorbing Markov chains, solved by BiCGStab.

The preconditioner is the tridiagonal part of the system, which is all of a chain's or queue's and
the rows of a grid, where enough of the flow is in it; elsewhere it is the diagonal. The inverse of
such a matrix has no negative entry, as the inverse of the system itself.

Axes: S states, J right-hand sides, N systems.
"""

import jax
import jax.numpy as jnp

from qusac_jax import _bicgstab, _control, _sparse_products
from qusac_jax._sparse_products import Flow

_TOLERANCE = {4: 1e-6, 8: 1e-12}  # of residuals, by bytes of a number
_STEPS_TOLERANCE = 1e-4  # for expected steps, of which the size matters
_MAX_ITERATIONS = 5000
_ROUND_LENGTH = 1000
# The norm of a residual must fall below this share of itself at each product; else BiCGStab is
# faster.
_LEAST_DESCENT = 0.4
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

    def solve_by(precondition, apply, b, start):
        x, residual, _ = _iterate(apply, b, start, tolerance, precondition)
        failed = _bicgstab.is_open(x, residual, _bicgstab.norm(b), tolerance)
        return x, (jnp.max(jnp.abs(residual)), failed)

    def solve_transposed(apply, b):
        backwards = _preconditioner(fixed, fixed_discount, transposed=True)
        x, (residual, failed) = solve_by(backwards, apply, b, (jnp.zeros_like(b), b))
        return jnp.where(failed, jnp.nan, x), (residual, failed)

    def solve_forwards(apply, b):
        start = _descend(apply, b, leak, tolerance, is_worthwhile=~_is_chain(fixed))
        return solve_by(precondition, apply, b, start)

    precondition = _preconditioner(fixed, fixed_discount)
    leak = 1 - fixed_discount * _sparse_products.mass(fixed)
    x, (residual, failed) = jax.lax.custom_linear_solve(
        lambda x: _apply(flow, discount, x),
        rhs.T,
        solve=solve_forwards,
        transpose_solve=solve_transposed,
        has_aux=True,
    )
    steps = _steps(fixed, fixed_discount, leak[None], precondition)
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
        rhs, start = rhs[None], start[None]
        both = start, rhs - apply(start)
        x, residual, count = _iterate(apply, rhs, both, tolerance, precondition)
        failed = _bicgstab.is_open(x, residual, _bicgstab.norm(rhs), tolerance)
        return x[0], count, failed

    if flow.probability.ndim == 3:
        x, count, failed = jax.vmap(one, in_axes=(None, 0, 0))(flow, rhs, start)
    else:
        x, count, failed = _sparse_products.over_members(one, flow, rhs, start)
    return x, count.max(), failed.any()


def _descend(apply, rhs, leak, tolerance, *, is_worthwhile):
    """x `[J, S]` after steps along the residual, and its residual.

    Each step first takes a constant out of the residual. Where the chain mixes fast, what is left
    shrinks more in one product than in the two of an iteration of BiCGStab; elsewhere this ends.

    Args:
        apply: the system.
        rhs: `[J, S]`.
        leak: `[S]`, what `apply` makes of ones.
        tolerance: of norms, relative to that of `rhs`.
        is_worthwhile: `[]` whether to take a step at all.
    """
    own = _bicgstab.unit(rhs)[:, None]  # in which no square is 0 or infinite
    rhs = rhs / own
    norm = lambda x: jnp.linalg.norm(x, axis=-1)
    target = tolerance * norm(rhs)
    leak = jnp.broadcast_to(leak, rhs.shape)
    leak_square = _dot(leak, leak)

    def divide(a, b):
        return jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0.0)[:, None]

    def step(carry):
        x, residual, size, _ = carry
        level = divide(_dot(leak, residual), leak_square)
        residual = residual - level * leak
        image = apply(residual)
        length = divide(_dot(image, residual), _dot(image, image))
        x = x + level + length * residual
        residual = residual - length * image
        smaller = norm(residual)
        is_open = smaller > target
        goes_on = jnp.any(is_open) & jnp.all(~is_open | (smaller < _LEAST_DESCENT * size))
        return x, residual, smaller, goes_on

    start = (jnp.zeros_like(rhs), rhs, norm(rhs), is_worthwhile)
    x, residual, size, _ = jax.lax.while_loop(lambda carry: carry[-1], step, start)
    # What is handed on as solved must be so; else the next round begins with the true residual.
    true_residual = lambda _: rhs - apply(x)
    residual = _control.apply_if(jnp.all(size <= target), true_residual, residual)
    return own * x, own * residual


def _dot(a, b):
    # XLA vectorizes no sum of products on CPU
    return jnp.einsum("ns,ns->n", a, b, precision="highest")


def _apply(flow, discount, x):
    """(I - discount * P) x for `[J, S]`."""
    return x - discount * jax.vmap(_sparse_products.propagate, in_axes=(None, 0))(flow, x)


def _iterate(apply, rhs, start, tolerance, precondition):
    return _bicgstab.solve(
        apply,
        rhs,
        start,
        tolerance=tolerance,
        max_iterations=_MAX_ITERATIONS,
        precondition=precondition,
        round_length=_ROUND_LENGTH,
        dot=_dot,
        half_steps=True,
    )


def _steps(flow, discount, leak, precondition):
    """Expected discounted steps from the worst state; infinity where BiCGStab fails."""
    # The answer where no state ends the episode more often than the others, and a bound else.
    guess = 1 / jnp.maximum(leak.min(), jnp.sqrt(jnp.finfo(leak.dtype).eps))
    ones = jnp.ones_like(leak)
    start = guess * ones, ones - guess * leak
    apply = lambda x: _apply(flow, discount, x)
    steps, residual, _ = _iterate(apply, ones, start, _STEPS_TOLERANCE, precondition)
    failed = _bicgstab.is_open(steps, residual, _bicgstab.norm(ones), _STEPS_TOLERANCE)
    return jnp.where(failed, jnp.inf, steps.max())


def _is_chain(flow):
    before, _, after = _sparse_products.bands(flow)
    return jnp.mean(before + after) > _CHAIN_SHARE * jnp.mean(_sparse_products.mass(flow))


def _preconditioner(flow, discount, *, transposed=False):
    """An approximate inverse of the system, `[J, S]` to `[J, S]`."""
    before, stay, after = _sparse_products.bands(flow)
    is_chain = _is_chain(flow)
    if transposed:
        before, after = jnp.roll(after, 1), jnp.roll(before, -1)
    lower, diagonal, upper = -discount * before, 1 - discount * stay, -discount * after

    def precondition(x):
        def solve_bands(scaled):
            rhs = (scaled * diagonal[None]).T
            return jax.lax.linalg.tridiagonal_solve(lower, diagonal, upper, rhs).T

        return _control.apply_if(is_chain, solve_bands, x / diagonal[None])

    return precondition
