"""Seconds, memory, residual and iterations of sparse `solve_exact` beside LU and SciPy.

Each case runs in a process of its own, which is how its peak memory is known. SciPy solves the same
systems one after the other, in float64: values of each member and of the mean MDP, and both forms
of the propagated variance. Example:
  python -m experiments.benchmark_sparse --sizes=1000,10000 --discounts=0.95
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from absl import flags

from experiments import cli
from qusac_jax import _sparse_linear, sparse, ube
from qusac_jax._fields import check_choice

NUM_MEMBERS, NUM_ACTIONS, NUM_SUCCESSORS = 5, 4, 5
SOLVERS = ("sparse", "dense", "spsolve", "bicgstab")
STRUCTURES = ("random", "local", "chain")

_DENSE_LIMIT = 2_000  # states; 5 members of 4 actions take 320 MB
_SPSOLVE_LIMIT = {"random": 2_000, "local": 100_000, "chain": 2_000_000}  # LU fills up beyond
_REACH = 10  # of successors in a local problem, in states
_SCIPY_TOLERANCE = 1e-6  # as that of the library in float32


def make_problem(size: int, structure: str, seed: int = 0):
    """Transitions of N members with shared successors, rewards and a policy, in float32."""
    rng = np.random.default_rng(seed)
    shape = (size, NUM_ACTIONS, NUM_SUCCESSORS)
    if structure == "random":
        next_state = rng.integers(0, size, shape, dtype=np.int32)
    else:
        reach = 1 if structure == "chain" else _REACH
        step = rng.integers(-reach, reach + 1, shape, dtype=np.int32)
        next_state = np.clip(np.arange(size, dtype=np.int32)[:, None, None] + step, 0, size - 1)
    probability = rng.random((NUM_MEMBERS, *shape), np.float32)
    for member in probability:
        member /= member.sum(-1, keepdims=True) * np.float32(1 + 1e-6)
    reward = rng.standard_normal((NUM_MEMBERS, size, NUM_ACTIONS), np.float32)
    policy = np.full((size, NUM_ACTIONS), 1 / NUM_ACTIONS, np.float32)
    return sparse.Sparse(next_state, probability), reward, policy


def measure(solver: str, size: int, discount: float, structure: str) -> dict[str, Any]:
    """Seconds of the second call, peak bytes, residual, and iterations of the slowest system."""
    transition, reward, policy = make_problem(size, structure)
    if solver in ("spsolve", "bicgstab"):
        return _measure_scipy(solver, transition, reward, policy, discount)
    if solver == "dense":
        transition = sparse.to_dense(jax.tree.map(jnp.asarray, transition))
    arrays = jax.tree.map(jnp.asarray, (transition, reward, policy))
    del transition, reward, policy
    solve = jax.jit(ube.solve_exact)
    start = time.perf_counter()
    result = jax.block_until_ready(solve(*arrays, discount))
    first = time.perf_counter() - start
    start = time.perf_counter()
    result = jax.block_until_ready(solve(*arrays, discount))
    seconds = time.perf_counter() - start
    iterations = _iterations(*arrays, discount) if solver == "sparse" else None
    return {
        "seconds": seconds,
        "first": first,
        "residual": float(result.residual),
        "condition": float(result.condition),
        "iterations": iterations,
    }


@jax.jit
def _iterations(transition, reward, policy, discount):
    """Of BiCGStab for the values of the first member."""
    member = sparse.Sparse(transition.next_state, transition.probability[0])
    flow = sparse.under(member, policy)
    rhs = jnp.sum(policy * reward[0], -1)[None]
    return _sparse_linear.solve_warm(flow, rhs, discount, jnp.zeros_like(rhs))[1]


def _measure_scipy(solver, transition, reward, policy, discount):
    """The systems of `solve_exact` by SciPy; what the right-hand sides are does not matter."""
    next_state, probability = transition
    size = len(policy)
    weights = [*probability, probability.mean(0)]
    rewards = [*(policy * reward).sum(-1), (policy * reward.mean(0)).sum(-1)]
    identity = scipy.sparse.identity(size, format="csr")
    seconds, residuals, iterations = 0.0, [], []
    # The last matrix once more with discount^2 and two right-hand sides.
    systems = [(i, discount, 1) for i in range(len(weights))] + [(-1, discount**2, 2)]
    for i, factor, num_sides in systems:
        rows = (policy[..., None] * weights[i]).reshape(size, -1).astype(np.float64)
        flow = scipy.sparse.csr_matrix(
            (rows.ravel(), next_state.ravel(), np.arange(size + 1) * rows.shape[1]),
            shape=(size, size),
        )
        system = (identity - factor * flow).tocsr()
        rhs = rewards[i].astype(np.float64)
        start = time.perf_counter()
        x, count = _solve_scipy(solver, system, rhs, num_sides)
        seconds += time.perf_counter() - start
        residuals.append(np.abs(system @ x - rhs).max())
        iterations.append(count)
    return {
        "seconds": seconds,
        "first": seconds,
        "residual": float(max(residuals)),
        "condition": None,
        "iterations": max(iterations) if solver == "bicgstab" else None,
    }


def _solve_scipy(solver, system, rhs, num_sides):
    if solver == "spsolve":
        factors = scipy.sparse.linalg.splu(system.tocsc())
        solutions = [factors.solve(rhs) for _ in range(num_sides)]
        return solutions[0], 0
    x, count = rhs, 0

    def counted(_):
        nonlocal count
        count += 1

    for _ in range(num_sides):
        count = 0
        x, failed = scipy.sparse.linalg.bicgstab(
            system, rhs, rtol=_SCIPY_TOLERANCE, maxiter=5000, callback=counted
        )
        if failed:
            return np.full_like(rhs, np.nan), count
    return x, count


def fits(solver: str, size: int, structure: str) -> bool:
    """Whether a solver can be asked for a problem of this size."""
    limits = {"dense": _DENSE_LIMIT, "spsolve": _SPSOLVE_LIMIT[structure]}
    return size <= limits.get(solver, size)


def make_flags() -> flags.FlagValues:
    """The flags of this command."""
    values = flags.FlagValues()
    define: dict[str, Any] = {"flag_values": values}
    flags.DEFINE_list("sizes", ["1000", "10000", "100000", "1000000"], "values of S", **define)
    flags.DEFINE_list("discounts", ["0.95"], "discounts", **define)
    flags.DEFINE_list("solvers", list(SOLVERS), f"of {', '.join(SOLVERS)}", **define)
    flags.DEFINE_list("structures", ["random"], f"of {', '.join(STRUCTURES)}", **define)
    flags.DEFINE_string("case", None, "one case, which prints JSON", **define)
    return values


def run(options) -> None:
    """Prints a row for each case."""
    if options.case:
        solver, size, discount, structure = options.case.split(":")
        measured = measure(solver, int(size), float(discount), structure)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        count = measured["iterations"]
        measured |= {"bytes": peak, "iterations": None if count is None else int(count)}
        print(json.dumps(measured))
        return
    sizes = cli.integers("sizes", options.sizes)
    checks: tuple[tuple[str, Sequence[str], Sequence[str]], ...] = (
        ("solvers", options.solvers, SOLVERS),
        ("structures", options.structures, STRUCTURES),
    )
    for name, values, choices in checks:
        for value in values:
            check_choice(name, value, choices)
    print("structure discount       S solver     seconds  first     MB  residual iterations")
    for structure in options.structures:
        for discount in options.discounts:
            for size in sizes:
                for solver in options.solvers:
                    if fits(solver, size, structure):
                        _print_case(solver, size, discount, structure)


def _print_case(solver: str, size: int, discount: str, structure: str) -> None:
    case = f"--case={solver}:{size}:{discount}:{structure}"
    command = [sys.executable, "-m", "experiments.benchmark_sparse", case]
    finished = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    label = f"{structure:9s} {discount:>8s} {size:7d} {solver:8s}"
    if finished.returncode:
        print(f"{label} failed: {finished.stderr.strip().splitlines()[-1]}", flush=True)
        return
    row = json.loads(finished.stdout.splitlines()[-1])
    count = "-" if row["iterations"] is None else row["iterations"]
    print(
        f"{label} {row['seconds']:9.3f} {row['first']:6.1f} {row['bytes'] / 1e6:6.0f} "
        f"{row['residual']:9.1e} {count!s:>10s}",
        flush=True,
    )


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and runs; returns the exit code."""
    options = make_flags()
    return cli.run_with(lambda: run(options), options, argv, __doc__ or "")


if __name__ == "__main__":
    sys.exit(main())
