"""BiCGStab on several systems at once, started again from true residuals.

Axes: N systems, S unknowns of each.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from qusac_jax import _control

# A solution is accepted if its residual is at most this many times the tolerance, plus this many
# machine epsilons of x.
_RESIDUAL_SLACK = 2
_ROUNDING_ERRORS = 10
# The residual need not shrink in each round, but what a breakdown makes of x is not kept.
_GROWTH = 10

Apply = Callable[[jax.Array], jax.Array]
Dot = Callable[[jax.Array, jax.Array], jax.Array]


def is_open(
    x: jax.Array, residual: jax.Array, scale: jax.Array, tolerance: jax.typing.ArrayLike
) -> jax.Array:
    """`[]` whether any of the systems is unsolved; one with a NaN or an infinity always is.

    Args:
        x: `[N, S]`.
        residual: `[N, S]` of x.
        scale: `[N]` norms of the right-hand sides.
        tolerance: norm of a residual that is aimed at, relative to `scale`.
    """
    rounding = _ROUNDING_ERRORS * jnp.finfo(x.dtype).eps * norm(x)
    size = norm(residual)
    is_solved = size <= _RESIDUAL_SLACK * tolerance * scale + rounding
    return ~jnp.all(is_solved & jnp.isfinite(size))


def solve(
    apply: Apply,
    rhs: jax.Array,
    start: jax.Array | tuple[jax.Array, jax.Array],
    *,
    tolerance: float,
    max_iterations: int,
    precondition: Apply | None = None,
    round_length: int | None = None,
    dot: Dot | None = None,
    half_steps: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Solves apply(x) = rhs from an initial guess.

    The residual that BiCGStab carries along can part from the true one, so that one is computed at
    the end, and where it is too large the iteration starts again from there.

    Args:
        apply: linear, `[N, S]` to `[N, S]`, each row by itself.
        rhs: `[N, S]`.
        start: `[N, S]`, or with its residual `[N, S]` where that is known.
        tolerance: 2-norm of a residual that is aimed at, relative to that of its `rhs`; twice that
            is accepted, or what rounding `x` causes, where that is larger.
        max_iterations: in all rounds together.
        precondition: an approximate inverse of `apply`.
        round_length: iterations after which a round begins anew.
        dot: `[N]` inner products of `[N, S]` and `[N, S]`; by default sums of products.
        half_steps: whether to end after the first product of an iteration where that is enough.

    Returns:
        x `[N, S]`, its true residual `[N, S]`, and the number of iterations, two products each.

    Source: van der Vorst (1992), "Bi-CGSTAB".
    """
    scale = norm(rhs)

    def proceed(carry):
        count, x, residual = carry
        return (count < max_iterations) & is_open(x, residual, scale, tolerance)

    def restart(carry):
        count, x, residual = carry
        left = max_iterations - count
        if round_length is not None:
            left = jnp.minimum(left, round_length)
        target = tolerance * scale
        size = norm(residual)[:, None]
        # Where few states have a residual, later residuals are at other states: orthogonal to the
        # first, which as the shadow residual would break the round down. This shadow has entries at
        # all states, and is another one in each round.
        shadow = jnp.where(count > 0, residual + size * _anything(residual, count), residual)
        options = (precondition, dot, half_steps)
        # Of size 1, or the squares of small numbers would be 0 and those of large ones infinite.
        own = unit(residual)
        scaled = residual / own[:, None], shadow / own[:, None], target / own
        correction, taken = _one_round(apply, *scaled, left, *options)
        correction = own[:, None] * correction
        new_residual = rhs - apply(x + correction)
        # Also false for NaN
        is_kept = norm(new_residual)[:, None] < _GROWTH * size
        # A round that takes no step would be repeated for ever
        count = jnp.where(taken > 0, count + taken, max_iterations)
        x = jnp.where(is_kept, x + correction, x)
        return count, x, jnp.where(is_kept, new_residual, residual)

    x, residual = start if isinstance(start, tuple) else (start, rhs - apply(start))
    carry = (jnp.zeros((), jnp.int32), x, residual)
    iterations, x, residual = jax.lax.while_loop(proceed, restart, carry)
    return x, residual, iterations


def norm(x: jax.Array) -> jax.Array:
    """`[N]` 2-norms of `[N, S]`, whatever the size of the numbers."""
    own = unit(x)
    return own * jnp.linalg.norm(x / own[:, None], axis=-1)


def unit(x: jax.Array) -> jax.Array:
    """`[N]` powers of two near the largest entries of `[N, S]`; 1 for zeros and what is not finite.

    Divided by them, numbers lose no digit.
    """
    largest = jnp.max(jnp.abs(x), axis=-1)
    is_known = (largest > 0) & jnp.isfinite(largest)
    _, exponent = jnp.frexp(jnp.where(is_known, largest, 1.0))
    return jnp.where(is_known, jnp.ldexp(jnp.ones_like(largest), exponent - 1), 1.0)


def _anything(like, salt):
    """`[1, S]` of norm 0.3, with entries to both sides of 0 in no order that states have."""
    index = jnp.arange(like.shape[-1], dtype=jnp.uint32)
    index = index + like.shape[-1] * salt.astype(jnp.uint32)
    share = (index * jnp.uint32(2654435769)).astype(like.dtype) / 2.0**32  # Knuth's hash
    return (share[None] - 0.5) / jnp.sqrt(jnp.asarray(like.shape[-1], like.dtype))


def _one_round(apply, residual, shadow, target, max_iterations, precondition, dot, half_steps):
    """Textbook BiCGStab on N systems at once; one that has converged or broken down stands still.

    Returns the change of x that takes the norms of the residuals `[N, S]` below `target` `[N]`, and
    the number of iterations.
    """
    eps, tiny = jnp.finfo(residual.dtype).eps, jnp.finfo(residual.dtype).tiny
    dot = _sum_of_products if dot is None else dot

    def divide(a, b):
        return jnp.where(jnp.abs(b) > tiny, a / jnp.where(b == 0, 1, b), 0.0)[:, None]

    def is_active(residual):
        return jnp.sqrt(dot(residual, residual)) > target

    def proceed(carry):
        return (carry[0] < max_iterations) & jnp.any(carry[1])

    def prepared(vector):
        return vector if precondition is None else precondition(vector)

    def second_half(half, is_needed):
        def move(_):
            towards = prepared(half)
            return towards, apply(towards)

        if not half_steps:
            return move(None)
        return _control.apply_if(is_needed, move, (jnp.zeros_like(half), jnp.zeros_like(half)))

    def step(carry):
        count, active, x, residual, direction, shadow_product = carry
        towards = prepared(direction)
        image = apply(towards)
        alpha = divide(shadow_product, dot(shadow, image))
        half = residual - alpha * image
        half_towards, half_image = second_half(half, jnp.any(active & is_active(half)))
        omega = divide(dot(half_image, half), dot(half_image, half_image))
        new_residual = half - omega * half_image
        new_product = dot(shadow, new_residual)
        beta = divide(new_product, shadow_product) * divide(alpha[:, 0], omega[:, 0])
        new_direction = new_residual + beta * (direction - omega * image)
        new_size = jnp.sqrt(dot(new_residual, new_residual))
        moves = (active & jnp.isfinite(new_size) & jnp.isfinite(new_product))[:, None]
        # Below, the product is nothing but rounding errors.
        goes_on = jnp.abs(new_product) > eps * shadow_size * new_size
        return (
            count + 1,
            moves[:, 0] & goes_on & (new_size > target),
            jnp.where(moves, x + alpha * towards + omega * half_towards, x),
            jnp.where(moves, new_residual, residual),
            jnp.where(moves, new_direction, direction),
            jnp.where(moves[:, 0], new_product, shadow_product),
        )

    shadow_size = jnp.sqrt(dot(shadow, shadow))
    zero = jnp.zeros((), jnp.int32)
    start = (jnp.zeros_like(residual), residual, residual, dot(shadow, residual))
    carry = jax.lax.while_loop(proceed, step, (zero, is_active(residual), *start))
    return carry[2], carry[0]


def _sum_of_products(a, b):
    return jnp.sum(a * b, -1)
