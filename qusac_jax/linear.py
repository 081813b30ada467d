"""Linear systems of absorbing Markov chains, (I - discount * P) x = b with P >= 0.

The inverse of such a matrix has no negative entry, so its largest row sum is the largest entry of
the solution for b = 1: the expected discounted number of steps until the chain ends. The condition
number in the maximum norm is at most twice that. Solved along with the other right-hand sides, it
says at next to no cost how far a solution can be trusted.

Axes: S states, J right-hand sides, N systems.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from qusac_jax import _bicgstab, _control, _likely_paths, _lu, _sparse_linear
from qusac_jax._likely_paths import Likely
from qusac_jax._sparse_products import Flow

_CACHED_BYTES = 2**22  # of matrices; with more, solving in turn is faster (BUILD_NOTES.md)
# Expected steps are at least 1, the first; a solution with clearly less is a singular system's.
LEAST_STEPS = 0.9


class Solution(NamedTuple):
    """Solution of a system and how well it was solved."""

    x: jax.Array  # [S, J]
    residual: jax.Array  # [] max |(I - discount * P) x - b|
    condition: jax.Array  # [] expected discounted steps from the worst state; inf if singular


def solve(flow: jax.Array | Flow, rhs: jax.Array, discount: chex.Numeric) -> Solution:
    """Solves (I - discount * flow) x = rhs, with one LU factorization or iteratively if sparse.

    Works under `jit`, `vmap` and `grad`. A relative error of x of about machine epsilon times
    `condition` is to be expected; a singular system has the `condition` infinity.

    Args:
        flow: `[S, S]` probabilities of the next state, or their sparse form; rows sum to at most 1.
        rhs: `[S, J]`.
        discount: in [0, 1].

    Returns:
        A `Solution`; the `condition` of a sparse system that was not solved is infinity too.
    """
    if isinstance(flow, Flow):
        return Solution(*_sparse_linear.solve(flow, rhs, discount))
    system = jnp.eye(len(flow), dtype=flow.dtype) - discount * flow
    rhs = jnp.concatenate([rhs, jnp.ones_like(rhs[:, :1])], axis=1)
    x = _lu.solve(system, rhs)
    fixed = jax.lax.stop_gradient(x)
    left = jnp.matmul(system, fixed, precision="highest") - rhs
    residual = jnp.max(jnp.abs(left[:, :-1]))  # without that of the steps
    steps = fixed[:, -1]
    condition = jnp.where(jnp.all(steps > LEAST_STEPS), jnp.max(steps), jnp.inf)
    return Solution(x[:, :-1], jax.lax.stop_gradient(residual), condition)


class IterativeSolution(NamedTuple):
    """Solutions of a batch of systems and the work that they took."""

    x: jax.Array  # [N, S]
    iterations: jax.Array  # [] of BiCGStab for the slowest system, two products each
    fell_back: jax.Array  # [] whether LU was needed; sparse: whether a system is not solved


def solve_warm(
    flow: jax.Array | Flow,
    rhs: jax.Array,
    discount: chex.Numeric,
    start: jax.Array,
    *,
    policy: jax.Array | None = None,
    likely: Likely | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 60,
) -> IterativeSolution:
    """Solves N systems (I - discount * flow_i) x_i = rhs_i by BiCGStab from an initial guess.

    For repeated solves with slowly changing matrices, where a good guess is at hand: on CPU it is
    about ten times faster than LU at S = 900. In single precision the residual that BiCGStab
    carries along can part from the true one, so that one is computed at the end, and where it is
    too large the iteration starts again from there. Where that does not converge either, LU solves
    instead. Not differentiable: `solve` is.

    On CPU, systems that do not fit into the cache together are solved in turn: each matrix is read
    in every iteration, and one alone may stay there.

    Args:
        flow: `[N, S, S]` probabilities of the next state; rows sum to at most 1. Or `[N, S, A, S]`,
            from which each system gathers the rows of `policy` when its turn comes: a third of the
            time of gathering them all before. If sparse, one `Flow` that all systems share, or of N
            members.
        rhs: `[N, S]`.
        discount: in [0, 1].
        start: `[N, S]` initial guess.
        policy: `[S]` actions, if `flow` has them.
        likely: `[S]` each, where all of the systems mostly lead, for a preconditioner that saves
            iterations (for a belief about DeepSea, 4 instead of 30); not read if sparse.
        tolerance: 2-norm of a residual that is aimed at, relative to that of its `rhs`; twice that
            is accepted, or what rounding `x` causes, where that is larger. Not read if sparse,
            where it is 1e-6 in single and 1e-12 in double precision.
        max_iterations: after which LU takes over; not read if sparse, where LU never does.

    Returns:
        An `IterativeSolution`.

    Source: van der Vorst (1992), "Bi-CGSTAB".
    """
    if isinstance(flow, Flow):
        return IterativeSolution(*_sparse_linear.solve_warm(flow, rhs, discount, start))
    precondition = None if likely is None else _likely_paths.preconditioner(likely, discount)
    together = functools.partial(
        _solve_together,
        discount=discount,
        policy=policy,
        precondition=precondition,
        tolerance=tolerance,
        max_iterations=max_iterations,
    )

    def one(system):
        # With the axis put there outside of the loop, XLA on CPU copies all of the matrices.
        alone = together(*[leaf[None] for leaf in system])
        return alone._replace(x=alone.x[0])

    def in_turn(*systems):
        each = jax.lax.map(one, systems)
        return IterativeSolution(each.x, each.iterations.max(), each.fell_back.any())

    num_entries = rhs.size * rhs.shape[-1]
    if len(rhs) == 1 or num_entries * flow.dtype.itemsize <= _CACHED_BYTES:
        return together(flow, rhs, start)
    return jax.lax.platform_dependent(flow, rhs, start, cpu=in_turn, default=together)


def _solve_together(flow, rhs, start, *, discount, policy, precondition, tolerance, max_iterations):
    """`solve_warm` in products with all matrices at once."""
    if policy is not None:
        flow = flow[:, jnp.arange(len(policy)), policy]

    def apply(x):
        return x - discount * jnp.einsum("nst,nt->ns", flow, x, precision="highest")

    x, residual, iterations = _bicgstab.solve(
        apply,
        rhs,
        start,
        tolerance=tolerance,
        max_iterations=max_iterations,
        precondition=precondition,
    )

    def factorize(_):
        return jax.vmap(solve, in_axes=(0, 0, None))(flow, rhs[..., None], discount).x[..., 0]

    fell_back = _bicgstab.is_open(x, residual, _bicgstab.norm(rhs), tolerance)
    x = _control.apply_if(fell_back, factorize, x)
    return IterativeSolution(x, iterations, fell_back)
