"""Dense linear systems by LU, of which several are solved one after the other on CPU.

Axes: S unknowns, J right-hand sides.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def solve(system: jax.Array, rhs: jax.Array) -> jax.Array:
    """x of system @ x = rhs with one LU factorization, which gradients use again.

    Args:
        system: `[S, S]`.
        rhs: `[S, J]`.

    Returns:
        `[S, J]`; not finite where the system is singular.
    """
    factors = _factorize(jax.lax.stop_gradient(system))
    return jax.lax.custom_linear_solve(
        lambda x: jnp.matmul(system, x, precision="highest"),
        rhs,
        solve=lambda _, b: _substitute(*factors, b),
        transpose_solve=lambda _, b: _substitute_transposed(*factors, b),
    )


def _in_turn_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with a `vmap` rule that maps in turn on CPU and at once elsewhere.

    Where only the right-hand sides (the last argument, `[S, J]`) are many, they become columns of a
    single one, so that factors are shared and not copied.

    jaxlib's batched LAPACK kernels wait, in a thread of XLA's pool, for work that they put into the
    same pool (seen in 0.10.2): as many of them at once as the pool has threads wait for ever, which
    on two cores two independent batched systems do. A kernel that works on one matrix never waits.
    """
    mapped = jax.custom_batching.custom_vmap(function)

    @mapped.def_vmap
    def rule(axis_size: int, in_batched: Sequence[bool], *arguments: jax.Array):
        *shared, last = arguments
        if len(arguments) > 1 and not any(in_batched[:-1]):
            columns = jnp.moveaxis(last, 0, 1).reshape(last.shape[1], -1)
            out = mapped(*shared, columns).reshape(-1, axis_size, last.shape[2])
            return jnp.moveaxis(out, 1, 0), True
        axes = tuple(0 if batched else None for batched in in_batched)

        def in_turn(*arguments: jax.Array) -> Any:
            def one(batched: Sequence[jax.Array]) -> Any:
                rest = iter(batched)
                parts = zip(arguments, in_batched, strict=True)
                return mapped(*[next(rest) if is_batched else x for x, is_batched in parts])

            return jax.lax.map(one, [x for x, b in zip(arguments, in_batched, strict=True) if b])

        at_once = jax.vmap(function, in_axes=axes)
        out = jax.lax.platform_dependent(*arguments, cpu=in_turn, default=at_once)
        return out, jax.tree.map(lambda _: True, out)

    return mapped


@_in_turn_on_cpu
def _factorize(system: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jax.scipy.linalg.lu_factor(system)


@_in_turn_on_cpu
def _substitute(lu: jax.Array, pivots: jax.Array, rhs: jax.Array) -> jax.Array:
    return jax.scipy.linalg.lu_solve((lu, pivots), rhs)


@_in_turn_on_cpu
def _substitute_transposed(lu: jax.Array, pivots: jax.Array, rhs: jax.Array) -> jax.Array:
    return jax.scipy.linalg.lu_solve((lu, pivots), rhs, trans=1)
