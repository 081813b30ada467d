"""Tabular policy optimization under a belief: optimistic policy iteration (OFU) and PSRL.

Policies are deterministic, `[S]` integers. Axes: S states, A actions, N sampled MDPs.
"""

import dataclasses
import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import _fields, posterior
from qusac_jax._checks import check_key
from qusac_jax._fields import Check, check_choice, checked
from qusac_jax._posterior_checks import check_posterior
from qusac_jax._problem_checks import check_actions
from qusac_jax.tabular._evaluation import (
    PROPAGATING,
    SAMPLING,
    Evaluation,
    WarmStart,
    evaluate_policy,
    likeliest,
    sample_models,
)

METHODS = (
    "ensemble_mean",
    "ensemble_var",
    "pombu",
    "exact_ube",
    "upper_bound",
    "moments",
    "psrl",
)
SOLVERS = ("warm", "lu")

_TIE_TOLERANCE = 1e-6  # of the largest score; float32 solutions are hardly more precise

# The methods whose results depend on a field of `Config`; all depend on those not named here, but
# for `solver`, which has no influence where the environment is sparse.
READ_BY = {
    "risk": (*SAMPLING, "moments"),
    "num_members": SAMPLING,
    "min_local": PROPAGATING,
}


_discount = Check(
    lambda value: _fields.is_finite(value) and 0 <= float(np.float32(value)) < 1,
    "be in [0, 1) in float32",  # beliefs may be of float32
    "with 1, a policy that never terminates has no values",
)


@dataclasses.dataclass(frozen=True)
class Config:
    """How an agent chooses its policy. The defaults are the paper's (appendix C.1)."""

    method: str = "exact_ube"  # one of `METHODS`
    discount: float = checked(0.99, _discount)
    # lambda of eq. (9), policy_opt; positive seeks, negative avoids
    risk: float = checked(1.0, _fields.finite)
    num_members: int = checked(5, _fields.integer(1))  # N
    # u_min, least uncertainty reward; -0.05 for DeepSea
    min_local: float = checked(0.0, _fields.finite)
    max_steps: int = checked(40, _fields.integer(1))  # of policy iteration
    solver: str = "warm"  # warm-started BiCGStab with LU as its fallback, or lu; sparse: warm

    def __post_init__(self):
        """Raises `ValueError` naming the field, its value and what is allowed."""
        check_choice("method", self.method, METHODS)
        check_choice("solver", self.solver, SOLVERS)
        _fields.check_fields(self)


class Plan(NamedTuple):
    """Result of policy iteration."""

    policy: jax.Array  # [S] actions
    warm_start: WarmStart  # for the next call
    evaluation: Evaluation  # of the policy before the last improvement that was computed
    steps: jax.Array  # [] of policy iteration that were computed
    period: jax.Array  # [] of the cycle that it ended in: 1 = converged, 0 = cut off before
    unsolved: jax.Array  # [] as in `Evaluation`, of all steps together


def init_warm_start(num_states: int, config: Config, dtype=jnp.float32) -> WarmStart:
    """Zeros, for the first call of `optimize`."""
    members = jnp.zeros((config.num_members, num_states), dtype)
    return WarmStart(members[0], members, members[0])


def optimize(
    belief: posterior.Posterior,
    policy: jax.Array,
    warm_start: WarmStart,
    key: chex.PRNGKey,
    *,
    config: Config,
) -> Plan:
    """Policy iteration on Q + risk * sqrt(U) (eq. (9), policy_opt), or on one sample (PSRL).

    Q is that of the posterior mean MDP (Q-bar), and U is estimated as in Algorithm 1.

    MDPs are sampled once. At most `config.max_steps` policies are evaluated; where the greedy map
    returns to a policy that it has seen, the rest of its cycle is stepped through without
    evaluating it again. Ties are broken at random, in the same way in each step.

    Args:
        belief: over transitions and rewards.
        policy: `[S]` actions to start from.
        warm_start: solutions to start from, in the belief's dtype or cast to it; without influence
            on the result beyond the solver's tolerance.
        key: consumed.
        config: static.

    Returns:
        A `Plan`.

    Raises:
        ValueError: for a policy of a wrong shape or dtype, a warm start of wrong shapes, an invalid
            key, and outside `jit` for actions outside 0 .. A-1.
    """
    check_key(key)
    policy = _checked(belief, policy)
    cold = init_warm_start(len(policy), config, belief.reward_mean.dtype)
    for name, start, zeros in zip(WarmStart._fields, warm_start, cold, strict=True):
        if jnp.shape(start) != zeros.shape:
            raise ValueError(
                f"warm_start.{name} must have shape {zeros.shape}, got {jnp.shape(start)}; start "
                "from init_warm_start(S, config)"
            )
    warm_start = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), warm_start, cold)
    return _optimize(belief, policy, warm_start, key, config=config)


@functools.partial(jax.jit, static_argnames="config")
def _optimize(belief, policy, warm_start, key, *, config) -> Plan:
    key_sample, key_tie = jax.random.split(key)
    mean, members = sample_models(belief, key_sample, config)
    preference = jax.random.uniform(key_tie, belief.reward_mean.shape)
    likely = likeliest(mean)
    in_models = functools.partial(evaluate_policy, belief, mean, members, likely, config=config)
    history = jnp.full((config.max_steps + 1, len(policy)), -1, policy.dtype).at[0].set(policy)

    def improve(now: _Iteration) -> _Iteration:
        evaluation, warm_start = in_models(now.history[now.step], now.warm_start)
        greedy = _greedy(evaluation, preference, config.risk).astype(now.history.dtype)
        seen = jnp.all(now.history == greedy[None], -1)
        return _Iteration(
            step=now.step + 1,
            history=now.history.at[now.step + 1].set(greedy),
            period=jnp.where(jnp.any(seen), now.step + 1 - jnp.argmax(seen), 0),
            warm_start=warm_start,
            evaluation=evaluation,
            unsolved=now.unsolved + evaluation.unsolved,
        )

    def proceed(now: _Iteration) -> jax.Array:
        return (now.step < config.max_steps) & (now.period == 0)

    zeros = jnp.zeros_like(belief.reward_mean)
    zero, none = jnp.zeros((), int), jnp.zeros((), jnp.int32)
    evaluation = Evaluation(zeros, zeros, zeros, zeros[0, 0], none)
    start = _Iteration(zero, history, zero, warm_start, evaluation, none)
    end = jax.lax.while_loop(proceed, improve, start)
    # `max_steps` steps along the cycle that ends at `end.step` end here:
    left = jnp.where(end.period > 0, (config.max_steps - end.step) % jnp.maximum(end.period, 1), 0)
    last = jnp.where(left > 0, end.step - end.period + left, end.step)
    policy = end.history[last]
    return Plan(policy, end.warm_start, end.evaluation, end.step, end.period, end.unsolved)


class _Iteration(NamedTuple):
    """Where policy iteration is."""

    step: jax.Array  # [] improvements so far
    history: jax.Array  # [max_steps + 1, S] policies, -1 in those to come
    period: jax.Array  # [] steps since the last policy was met before, 0 if it is new
    warm_start: WarmStart
    evaluation: Evaluation  # of the policy before the last
    unsolved: jax.Array  # [] int32, systems that were not solved


def evaluate(
    belief: posterior.Posterior, policy: jax.Array, key: chex.PRNGKey, *, config: Config
) -> Evaluation:
    """Mean values and epistemic variance of a policy `[S]` (Algorithm 1).

    Arguments and errors are those of `optimize`, without `warm_start`; returns an `Evaluation`.
    """
    check_key(key)
    return _evaluate_cold(belief, _checked(belief, policy), key, config=config)


@functools.partial(jax.jit, static_argnames="config")
def _evaluate_cold(belief, policy, key, *, config) -> Evaluation:
    mean, members = sample_models(belief, key, config)
    warm_start = init_warm_start(len(policy), config, belief.reward_mean.dtype)
    return evaluate_policy(
        belief, mean, members, likeliest(mean), policy, warm_start, config=config
    )[0]


def _checked(belief, policy):
    check_posterior(belief)
    return check_actions(policy, *belief.reward_mean.shape)


def _greedy(evaluation, preference, risk):
    score = evaluation.mean_q + risk * jnp.sqrt(jnp.maximum(evaluation.variance, 0.0))
    is_best = score >= score.max(-1, keepdims=True) - _TIE_TOLERANCE * jnp.max(jnp.abs(score))
    return jnp.argmax(jnp.where(is_best, preference, -1.0), -1)
