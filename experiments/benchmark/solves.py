"""Cases of `qusac_jax.ube`: one solution of a UBE, of dense and of sparse problems.

Axes: R seeds, N members, S states, A actions, K successors of a pair.
"""

import functools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy
import scipy.sparse
import scipy.sparse.linalg

from experiments.benchmark import baselines, measure, numpy_reference
from experiments.benchmark.jobs import Baseline, Case, Job, Measurement, Setting
from experiments.benchmark.measure import Work
from qusac_jax import sparse, ube

_METHODS = {
    "exact_ube": ube.solve_exact,
    "pombu": ube.solve_pombu,
    "upper_bound": ube.solve_upper_bound,
}
_STATES = {False: (100, 400, 900, 1600), True: (400,)}  # by whether the table is quick
_MEMBERS, _ACTIONS, _DISCOUNT = 5, 2, 0.99
_ARRAYS = 4  # as large as the ensemble's transitions, that a solution takes about
_SYSTEMS = _MEMBERS + 2  # factorized: of the members, of the mean MDP, of the variance

# States and discounts by structure; a quick table that is asked for the case has the first of each.
_SPARSE = {
    "random": ((10**3, 0.95), (10**4, 0.95), (10**5, 0.95), (10**6, 0.95), (10**6, 0.99)),
    "local": ((10**5, 0.99), (10**5, 0.999)),
    "chain": ((10**5, 0.99),),
}
_SPARSE_ACTIONS, _SUCCESSORS = 4, 5
_REACH = {"local": 10, "chain": 1}  # of successors, in states
_SPARSE_TOLERANCE = 1e-6  # as that of the library in float32


def dense_problem(num_states: int, seed: int = 0) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Transitions `[N, S, A, S]`, rewards `[N, S, A]` and a deterministic policy `[S, A]`."""
    keys = jax.random.split(jax.random.key(seed), 3)
    shape = (_MEMBERS, num_states, _ACTIONS)
    weights = jax.random.uniform(keys[0], (*shape, num_states))
    transition = weights / (jnp.sum(weights, -1, keepdims=True) * (1 + 1e-6))
    policy = jax.random.randint(keys[2], (num_states,), 0, _ACTIONS)
    return transition, jax.random.normal(keys[1], shape), jax.nn.one_hot(policy, _ACTIONS)


def solve_jobs(setting: Setting, methods: Sequence[str]) -> Iterator[Job]:
    """A row for each number of states, method and number of seeds."""
    for num_states in _STATES[setting.is_quick]:
        for method in methods:
            factorize = _SYSTEMS * 2 / 3 * num_states**3
            for num_seeds in setting.num_seeds:
                yield Job(
                    case="ube_solve",
                    method=method,
                    num_seeds=num_seeds,
                    sizes=f"S {num_states}, A {_ACTIONS}, N {_MEMBERS}",
                    unit="solves",
                    memory=_ARRAYS * 4 * num_seeds * _MEMBERS * num_states**2 * _ACTIONS,
                    calls=f"up to {1 + setting.repeat} solves",
                    measure=functools.partial(
                        _measure_solve, setting, method, num_states, num_seeds, factorize
                    ),
                    flops=2 * num_seeds * factorize,
                )


def _measure_solve(
    setting: Setting,
    method: str,
    num_states: int,
    num_seeds: int,
    factorize: float,
) -> Measurement:
    seeds = jnp.arange(num_seeds)
    problems = jax.jit(jax.vmap(lambda seed: dense_problem(num_states, seed)))(seeds)
    solve = functools.partial(_METHODS[method], discount=_DISCOUNT)
    if num_seeds == 1:  # as one problem is solved
        problems = jax.tree.map(lambda leaf: leaf[0], problems)
    else:
        solve = jax.vmap(solve)
    solve = jax.jit(solve)
    compiled = measure.compile_for(solve, *problems)
    timing = measure.timed(lambda: jax.block_until_ready(compiled.call(*problems)), setting.repeat)
    counted = compiled.work(per_iteration=num_seeds, per_call=num_seeds)
    baseline = None
    if setting.has_baselines:
        # Only the first: the reference takes one problem after the other.
        first = problems if num_seeds == 1 else jax.tree.map(lambda leaf: leaf[0], problems)
        problem = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), first)
        with baselines.numpy_threads() as name:
            seconds = measure.timed(lambda: solve_by_numpy(method, *problem), setting.repeat)
        baseline = Baseline(name, 1 / statistics.median(seconds.seconds))
    return Measurement(
        units=num_seeds,
        timing=timing,
        compile_seconds=compiled.seconds,
        # XLA does not look into the calls of LAPACK or cuSOLVER that factorize.
        work=Work(counted.flops + factorize, counted.bytes),
        baseline=baseline,
    )


def solve_by_numpy(
    method: str, transition: np.ndarray, reward: np.ndarray, policy: np.ndarray
) -> np.ndarray:
    """The variance of Q `[S, A]` by the plain reference."""
    mean_model = transition.mean(0), reward.mean(0)
    run = numpy_reference.Run(method=method, discount=_DISCOUNT)
    actions = policy.argmax(-1)
    return numpy_reference.evaluate(mean_model, (transition, reward), actions, run)[1]


def sparse_problem(num_states: int, structure: str) -> tuple[sparse.Sparse, np.ndarray, np.ndarray]:
    """Transitions of N members with shared successors, rewards and a policy, in float32."""
    rng = np.random.default_rng(0)
    shape = (num_states, _SPARSE_ACTIONS, _SUCCESSORS)
    if structure == "random":
        next_state = rng.integers(0, num_states, shape, dtype=np.int32)
    else:
        reach = _REACH[structure]
        step = rng.integers(-reach, reach + 1, shape, dtype=np.int32)
        own = np.arange(num_states, dtype=np.int32)[:, None, None]
        next_state = np.clip(own + step, 0, num_states - 1)
    probability = rng.random((_MEMBERS, *shape), np.float32)
    for member in probability:
        member /= member.sum(-1, keepdims=True) * np.float32(1 + 1e-6)
    reward = rng.standard_normal((_MEMBERS, num_states, _SPARSE_ACTIONS), np.float32)
    policy = np.full((num_states, _SPARSE_ACTIONS), 1 / _SPARSE_ACTIONS, np.float32)
    return sparse.Sparse(next_state, probability), reward, policy  # type: ignore[arg-type]


def sparse_jobs(setting: Setting, methods: Sequence[str]) -> Iterator[Job]:
    """A row for each structure, number of states and discount, always of one seed."""
    del methods
    for structure, rows in _SPARSE.items():
        for num_states, discount in rows[:1] if setting.is_quick else rows:
            pairs = num_states * _SPARSE_ACTIONS
            yield Job(
                case="ube_solve_sparse",
                method="exact_ube",
                num_seeds=1,
                sizes=f"{structure}: S {num_states}, A {_SPARSE_ACTIONS}, N {_MEMBERS}, "
                f"K {_SUCCESSORS}, discount {discount}",
                unit="solves",
                memory=_ARRAYS * 4 * _MEMBERS * pairs * _SUCCESSORS,
                calls=f"up to {1 + setting.repeat} solves",
                measure=functools.partial(
                    _measure_sparse, setting, num_states, structure, discount
                ),
            )


def _measure_sparse(
    setting: Setting, num_states: int, structure: str, discount: float
) -> Measurement:
    problem = sparse_problem(num_states, structure)
    on_device = jax.tree.map(jnp.asarray, problem)
    solve = jax.jit(functools.partial(ube.solve_exact, discount=discount))
    compiled = measure.compile_for(solve, *on_device)
    timing = measure.timed(lambda: jax.block_until_ready(compiled.call(*on_device)), setting.repeat)
    baseline = None
    if setting.has_baselines:
        systems = _systems(*problem, discount)
        solver = _bicgstab if structure == "random" else _lu
        seconds = measure.timed(lambda: [solver(*each) for each in systems], setting.repeat)
        name = f"SciPy {scipy.__version__}, {solver.__name__[1:]}, solves alone"
        baseline = Baseline(name, 1 / statistics.median(seconds.seconds))
    work = least_sparse_work(num_states)
    return Measurement(1, timing, compiled.seconds, work, baseline)


def least_sparse_work(num_states: int) -> Work:
    """Of a solution, counted by hand: what is given is read once, and each system is checked once.

    A check is the product of the transitions with a right-hand side: one for each member, one for
    the mean MDP, two for the variance. How often solvers iterate is left out.

    Args:
        num_states: S.
    """
    pairs = num_states * _SPARSE_ACTIONS
    successors = pairs * _SUCCESSORS
    read = (_MEMBERS + 1) * successors + (_MEMBERS + 1) * pairs
    return Work(2.0 * (_MEMBERS + 3) * successors, 4.0 * (read + pairs))


def _systems(
    transition: sparse.Sparse, reward: np.ndarray, policy: np.ndarray, discount: float
) -> list[tuple[Any, np.ndarray]]:
    """The matrices of `solve_exact` in float64, each with its right-hand sides `[J, S]`.

    Members, the mean MDP, and that once more with two forms of the variance; what the right-hand
    sides are does not matter.
    """
    next_state, probability = map(np.asarray, transition)
    num_states = len(policy)
    identity = scipy.sparse.identity(num_states, format="csr")
    values = [*(policy * reward).sum(-1), (policy * reward.mean(0)).sum(-1)]
    weights = [*probability, probability.mean(0)]
    cases = [(weight, discount, value[None]) for weight, value in zip(weights, values, strict=True)]
    cases.append((weights[-1], discount**2, np.stack([values[-1]] * 2)))
    systems = []
    for weight, factor, rhs in cases:
        rows = (policy[..., None] * weight).reshape(num_states, -1).astype(np.float64)
        starts = np.arange(num_states + 1) * rows.shape[1]
        flow = scipy.sparse.csr_matrix(
            (rows.ravel(), next_state.ravel(), starts), shape=(num_states, num_states)
        )
        systems.append(((identity - factor * flow).tocsr(), rhs.astype(np.float64)))
    return systems


def _lu(system: Any, rhs: np.ndarray) -> np.ndarray:
    return scipy.sparse.linalg.splu(system.tocsc()).solve(rhs.T)


def _bicgstab(system: Any, rhs: np.ndarray) -> np.ndarray:
    solved = [
        scipy.sparse.linalg.bicgstab(system, side, rtol=_SPARSE_TOLERANCE, maxiter=5000)[0]
        for side in rhs
    ]
    return np.stack(solved, 1)


CASES = {
    "ube_solve": Case(
        about="solutions of a UBE, dense",
        methods=tuple(_METHODS),
        usual=("exact_ube",),
        quick=("exact_ube",),
        jobs=solve_jobs,
    ),
    "ube_solve_sparse": Case(
        about="solutions of the exact UBE, sparse",
        methods=("exact_ube",),
        usual=("exact_ube",),
        quick=(),
        jobs=sparse_jobs,
    ),
}
