"""Bellman and uncertainty Bellman equations (UBE) of an ensemble of tabular MDPs.

A transition is an array, or a `Sparse` of K successors per state and action for large problems.
Everything works under `jit`, `vmap` and `grad`, in float32 and float64: results have the dtype of
`transition`, or that of `reward` where `transition` holds whole numbers. Outside of these three,
bad values raise `ValueError`; results made inside carry a `residual` and a `condition` for
`check_result`. Missing probability mass is termination.

Algorithm 1 of the paper in these terms: line 2 (sample_mdp) is `qusac_jax.posterior.sample`; line 3
(solve_bellman) is `solve_bellman`, for each sampled MDP and for their mean; line 4 (qvariance) is
one of `ensemble_variance`, `solve_exact`, `solve_pombu` and `solve_upper_bound`, each of which does
line 3 itself.

The posterior mean value function V-bar (eq. (3), mean_value_function) is taken to be the value in
the posterior mean MDP (eq. (2), mean_model), which it is for acyclic MDPs with independent rows.

Axes: S states, A actions, N ensemble members. Equations, theorems and appendices are the paper's.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from qusac_jax import _ube_solvers
from qusac_jax._checks import check_real, check_scalars, integers, is_concrete
from qusac_jax._fields import check_choice
from qusac_jax._problem_checks import check_problem, check_result, check_shapes
from qusac_jax._ube_solvers import Decomposition, Values, Variance
from qusac_jax.moments import Moments, solve_moments
from qusac_jax.sparse import Sparse

__all__ = [
    "FORMS",
    "Decomposition",
    "Moments",
    "Sparse",
    "Values",
    "Variance",
    "check_problem",
    "check_result",
    "decompose",
    "ensemble_variance",
    "solve_bellman",
    "solve_exact",
    "solve_moments",
    "solve_pombu",
    "solve_upper_bound",
]

Transition = chex.Array | Sparse

FORMS = ("total", "gap", "difference")


def solve_bellman(
    transition: Transition, reward: chex.Array, policy: chex.Array, discount: chex.Numeric
) -> Values:
    """Values of a policy in one MDP: V = r_pi + discount * P_pi V.

    The value function of eq. (1), and what Algorithm 1 line 3 (solve_bellman) does for each sampled
    MDP. In the posterior mean MDP it is the mean value function V-bar of eq. (3),
    mean_value_function, if the MDPs are acyclic and their rows independent.

    Args:
        transition: `[S, A, S]` probabilities of the next state, or a `Sparse`; rows sum to at most
            1.
        reward: `[S, A]` expected rewards.
        policy: `[S, A]` action probabilities; rows sum to 1.
        discount: in [0, 1]; 1 needs a policy that always terminates.

    Returns:
        `Values`.

    Raises:
        ValueError: for wrong shapes, and where nothing is traced for bad values or an
            ill-conditioned system.
    """
    return _checked(_ube_solvers.solve_bellman, 0, transition, reward, policy, discount)


def solve_exact(
    transition: Transition,
    reward: chex.Array,
    policy: chex.Array,
    discount: chex.Numeric,
    *,
    min_local: chex.Numeric | None = 0.0,
    mean_transition: Transition | None = None,
    mean_reward: chex.Array | None = None,
    form: str = "difference",
) -> Variance:
    """Epistemic variance from the exact UBE (qvariance exact_ube of Algorithm 1 line 4).

    Solves eq. (6), bellman_exact, with the local uncertainty u of eq. (7), bellman_exact_reward
    (Theorem 1); unknown rewards are those of appendix B.1. What is propagated is
    max(min_local, Var[r] + discount^2 u). In V-form, u(s) is over a and s'; in Q-form (appendices
    B.2 and B.3), u(s, a) is over s' and a'.

    The theory is for acyclic MDPs with independent rows: there, in the limit of many members, the
    result is the posterior variance. With cycles it is an approximation, because the row of a state
    and the values of its successors then depend on each other: with much data it is close, with
    little data it can be far off, even negative (which `min_local` >= 0 prevents).

    The variance of the members' values (`ensemble_variance`) needs no such assumption, but with few
    members it is noisy, while a UBE sums the local uncertainties of many states and so averages
    their errors. Moreover, a UBE is a Bellman equation with local rewards: a network can learn its
    solution from single transitions, as QU-SAC's U-net does.

    Args:
        transition: `[N, S, A, S]` members' probabilities of the next state, or a `Sparse`.
        reward: `[N, S, A]` members' rewards; the same in each if rewards are known.
        policy: `[S, A]` action probabilities; rows sum to 1.
        discount: in [0, 1]; 1 needs a policy that always terminates.
        min_local: u_min, lower bound of what is propagated; None for no bound, as in the theory
            (then U may be negative where its assumptions do not hold).
        mean_transition: `[S, A, S]` or `Sparse` posterior mean; by default the ensemble's.
        mean_reward: `[S, A]` posterior mean; by default the ensemble's.
        form: algebraic form of u, equal under the theory's assumptions: "total" (eq. (7),
            bellman_exact_reward), "gap" (w minus the mean difference of aleatoric variances,
            Theorem 2) or "difference" (w minus the mean aleatoric variance of Q_i - mean Q, never
            above w; appendix B.3, exact_ube_q_rewards). The first two subtract variances of the
            values themselves and need float64 where much is known: with values of 1,000 known up
            to 0.002, single precision makes them 30 and 9 times too large.

    Returns:
        A `Variance`.

    Raises:
        ValueError: for wrong shapes or an unknown form, and where nothing is traced for bad values
            or an ill-conditioned system.
    """
    check_choice("form", form, FORMS)
    if min_local is not None:
        check_scalars(min_local=min_local)
        if is_concrete(min_local) and not float(min_local) < float("inf"):
            raise ValueError(f"min_local must be a number or None, got {min_local}")
    solver = functools.partial(_ube_solvers.solve_ube, form=form)
    means = (mean_transition, mean_reward)
    return _checked(solver, 1, transition, reward, policy, discount, *means, min_local=min_local)


def solve_pombu(
    transition: Transition,
    reward: chex.Array,
    policy: chex.Array,
    discount: chex.Numeric,
    *,
    mean_transition: Transition | None = None,
    mean_reward: chex.Array | None = None,
) -> Variance:
    """Upper bound on the epistemic variance in acyclic MDPs: the UBE of Zhou et al. (2020).

    The qvariance pombu of Algorithm 1 line 4: eq. (5), ube_pombu, whose local uncertainty is w of
    eq. (4), pombu_rewards (in Q-form: appendix B.3, pombu_q_rewards), never negative. With cycles
    the result is not a bound and, like that of `solve_exact`, can be far below the variance.
    Arguments, result and errors are those of `solve_exact`, without `min_local` and `form`.
    """
    solver = functools.partial(_ube_solvers.solve_ube, form="pombu")
    return _checked(solver, 1, transition, reward, policy, discount, mean_transition, mean_reward)


def solve_upper_bound(
    transition: Transition,
    reward: chex.Array,
    policy: chex.Array,
    discount: chex.Numeric,
    *,
    mean_transition: Transition | None = None,
    mean_reward: chex.Array | None = None,
) -> Variance:
    """Propagated variance of the members' values: a UBE whose local uncertainty is that of Q.

    The qvariance upper_bound of Algorithm 1 line 4. Its local uncertainty is w-hat_ub of eq. (12),
    modified_rewards, dividing by N (in V-form: the members' variance of V). It is propagated times
    discount^2, as in the paper's U-net loss, plus the variance of the rewards, as in all UBEs here.
    The result is therefore at least discount^2 times `ensemble_variance`: an upper bound on it at
    discount 1. At a smaller discount it can lie below `ensemble_variance` where a step's reward is
    known and nothing uncertain follows it. Arguments, result and errors are those of `solve_exact`,
    without `min_local` and `form`.
    """
    solver = functools.partial(_ube_solvers.solve_ube, form="upper_bound")
    return _checked(solver, 1, transition, reward, policy, discount, mean_transition, mean_reward)


def ensemble_variance(
    transition: Transition, reward: chex.Array, policy: chex.Array, discount: chex.Numeric
) -> Variance:
    """Variance of the members' values (dividing by N); nothing is propagated.

    The qvariance ensemble_var of Algorithm 1 line 4. The arguments are the first four of
    `solve_exact`, result and errors are as there; `local_v` and `local_q` repeat `v` and `q`.
    """
    return _checked(_ube_solvers.ensemble_variance, 1, transition, reward, policy, discount)


def decompose(
    transition: Transition, reward: chex.Array, policy: chex.Array, discount: chex.Numeric
) -> Decomposition:
    """Splits the variance of the next state's value into an epistemic and an aleatoric part.

    The value is that of the mean MDP, V-bar (in Q-form, Q-bar of the next pair). Eq. (8),
    interpretation: total = variance over a ~ policy and s' ~ mean transition; epistemic = w, the
    variance over members of the expectation; aleatoric = the mean over members of the variance.
    Discount and rewards enter only through V-bar. Returns a `Decomposition`; arguments (the first
    four) and errors are as for `solve_exact`.
    """
    return _checked(_ube_solvers.decompose, 1, transition, reward, policy, discount)


def _checked(
    solver: Callable, num_batch_axes: int, transition, reward, policy, discount, *means, **options
) -> Any:
    """Calls a solver between the checks of its inputs and of its result."""
    check_real(transition=transition, reward=reward, policy=policy, discount=discount)
    given = zip(("mean_transition", "mean_reward"), means, strict=False)
    check_real(**{name: array for name, array in given if array is not None})
    transition = _as_floating(transition, reward)
    dtype = transition.dtype
    means = tuple(_as_floating(x, reward, dtype) if isinstance(x, Sparse) else x for x in means)
    arrays = (reward, policy, *means)
    reward, policy, *means = (
        array if array is None or isinstance(array, Sparse) else jnp.asarray(array, dtype)
        for array in arrays
    )
    check_shapes(transition, reward, policy, *means, num_batch_axes=num_batch_axes)
    check_scalars(discount=discount, **options)
    # In the dtype of the arrays, or a float64 scalar would turn float32 results into float64.
    as_dtype = lambda x: None if x is None else jnp.asarray(x, dtype)
    solve = lambda: solver(
        transition,
        reward,
        policy,
        as_dtype(discount),
        *means,
        **{name: as_dtype(value) for name, value in options.items()},
    )
    given = (transition, reward, policy, discount, *means, *options.values())
    if not is_concrete(*jax.tree.leaves(given)):
        return solve()
    check_problem(transition, reward, policy, discount, *means)
    result = solve()
    if is_concrete(*result):
        check_result(result)
    return result


def _as_floating(transition, reward, dtype=None) -> Any:
    """The arrays of a dense or sparse transition, probabilities in at least single precision."""
    is_sparse = isinstance(transition, Sparse)
    probability = jnp.asarray(transition.probability if is_sparse else transition)
    if dtype is None:
        dtype = probability.dtype
        if not jnp.issubdtype(dtype, jnp.floating):  # whole numbers say nothing about precision
            dtype = jnp.asarray(reward).dtype
        with jax.numpy_dtype_promotion("standard"):  # strict, it refuses float64 and whole numbers
            dtype = jnp.promote_types(dtype, jnp.float32)
    probability = probability.astype(dtype)
    if not is_sparse:
        return probability
    return Sparse(integers("next_state", transition.next_state), probability)
