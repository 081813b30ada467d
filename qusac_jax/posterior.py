"""Dirichlet-normal belief over the transitions and rewards of a tabular MDP.

Axes: S states, A actions, T observed transitions, N sampled MDPs, P points of a table of
quantiles, K possible successors of a pair. Column S of the Dirichlet is the terminal state, so that
MDPs drawn from the belief are `[S, A, S]` and missing mass is termination. Where `init` is told the
possible successors, everything is in the sparse form of `qusac_jax.sparse` instead.
"""

import math
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import _belief, _dirichlet, _memory, _variates, sparse
from qusac_jax._belief import Mdp, Posterior, Transitions
from qusac_jax._checks import check_count, check_key, check_real, check_scalars, is_concrete
from qusac_jax._posterior_checks import (
    check_dtype,
    check_indices,
    check_number,
    check_possible,
    check_posterior,
    check_prior,
    check_support,
    check_supported,
    check_transition_shapes,
    check_transitions,
)

__all__ = [
    "NEARLY_NOISELESS",
    "SAMPLE_ARRAYS",
    "Mdp",
    "Posterior",
    "Transitions",
    "init",
    "mean",
    "sample",
    "sample_bytes",
    "update",
]

NEARLY_NOISELESS = 1e6  # inverse variance of a reward that one observation makes known

SAMPLE_ARRAYS = 2  # of the size of a sample, which XLA takes on CPU, the result among them
_SPARSE_WORK = 48  # bytes on the host that sorting and summing takes for each successor
_SMALL = 2**26  # bytes; what takes less is not worth asking how much memory there is


def init(
    num_states: int,
    num_actions: int,
    *,
    concentration: float | np.ndarray | None = None,
    reward_mean: float = 0.0,
    reward_precision: float = 1.0,
    support: chex.Array | None = None,
    dtype: Any = jnp.float32,
) -> Posterior:
    """The belief before any observation (appendix C.1, "Model learning").

    Args:
        num_states: S, at least 1.
        num_actions: A, at least 1.
        concentration: Dirichlet parameter of every entry, > 0; 1 / sqrt(S) by default. An array
            `[S, A, S+1]` (>= 0, a positive entry in each row) gives every entry its own: zeros
            exclude next states, for example those of other layers. Sampling is then slower.
        reward_mean: prior mean of every reward.
        reward_precision: prior inverse variance of every reward, > 0.
        support: `[S, A, K]` possible successors of each pair, where they are known: integers in
            0 .. S, S for the terminal state, -1 to pad shorter rows. Memory is then proportional to
            S * A * K. A successor that is listed twice counts once. `concentration` is a scalar for
            each successor, 1 / sqrt(K) by default, or `[S, A, K]`, of which successors that are
            listed twice have the sum; sampling is exact.
        dtype: float32 or float64 (with x64 enabled).

    Returns:
        A `Posterior` without data.

    Raises:
        ValueError: if a size, mean, concentration, precision or dtype is out of its range, the
            belief does not fit into memory, or concentration or support is being traced.
    """
    num_states = check_count("num_states", num_states)
    num_actions = check_count("num_actions", num_actions)
    dtype = check_dtype(dtype)
    check_number("reward_mean", reward_mean, dtype)
    check_number("reward_precision", reward_precision, dtype)
    if is_concrete(reward_precision) and not float(reward_precision) >= jnp.finfo(dtype).tiny:
        raise ValueError(f"reward_precision must be positive in {dtype}, got {reward_precision}")
    if concentration is not None:
        check_real(concentration=concentration)
    if not is_concrete(concentration, support):
        raise ValueError(
            "concentration and support must be known where the belief is made, got values that "
            "are being traced; make it outside of jit, vmap or grad and pass it in"
        )
    if support is not None:
        return _init_sparse(
            num_states, num_actions, support, concentration, reward_mean, reward_precision, dtype
        )
    shape = (num_states, num_actions, num_states + 1)
    _check_memory(math.prod(shape) * dtype.itemsize, "the belief", "lower num_states")
    prior = np.asarray(1 / math.sqrt(num_states) if concentration is None else concentration)
    check_prior(prior, shape, dtype)
    return Posterior(
        concentration=jnp.broadcast_to(jnp.asarray(prior, dtype), shape),
        reward_mean=jnp.full(shape[:2], reward_mean, dtype),
        reward_precision=jnp.full(shape[:2], reward_precision, dtype),
        prior=jnp.asarray(prior, dtype),
        log_quantile=None
        if prior.ndim
        else jnp.asarray(_variates.log_quantile_table(float(prior)), dtype),
    )


def _check_memory(needed: int, what: str, remedy: str) -> None:
    if needed > _SMALL:
        _memory.check(needed, what, remedy)


def _init_sparse(
    num_states, num_actions, support, concentration, reward_mean, reward_precision, dtype
) -> Posterior:
    support = np.asarray(support)
    _check_memory(support.size * dtype.itemsize, "the belief", "list fewer successors")
    if support.size * _SPARSE_WORK > _SMALL:
        needed = support.size * _SPARSE_WORK
        _memory.check(needed, "making the belief", "list fewer successors", is_on_host=True)
    support = check_support(support, num_states, num_actions)
    given = 1 / math.sqrt(support.shape[-1]) if concentration is None else concentration
    given = np.asarray(given, float)
    if given.ndim and given.shape != support.shape:
        raise ValueError(
            f"concentration must be a scalar or have the shape of support {support.shape}, got "
            f"{given.shape}"
        )
    listed, prior = sparse.distinct(support, np.broadcast_to(given, support.shape))
    if given.ndim == 0:
        prior = np.where(listed >= 0, given, 0.0)
    check_prior(prior, prior.shape, dtype)
    shape = (num_states, num_actions)
    return Posterior(
        concentration=jnp.asarray(prior, dtype),
        reward_mean=jnp.full(shape, reward_mean, dtype),
        reward_precision=jnp.full(shape, reward_precision, dtype),
        prior=jnp.asarray(prior, dtype),
        log_quantile=None,
        support=jnp.asarray(listed, jnp.int32),
    )


def update(
    posterior: Posterior,
    transitions: Transitions,
    *,
    weight: chex.Numeric = 1.0,
    noise_precision: chex.Numeric = NEARLY_NOISELESS,
) -> Posterior:
    """The belief after some transitions (conjugate updates of both parts).

    Many transitions are best given at once: in float32, a count of 2^24 does not grow by single
    ones any more.

    Args:
        posterior: the belief so far.
        transitions: `[T]` each. Under `jit`, entries with an index outside its range (negative ones
            too), or a next state that the belief excludes, are not counted.
        weight: scalar or `[T]`, >= 0: how many times each transition is counted. 0 ignores it,
            whatever its reward.
        noise_precision: inverse variance of an observed reward around the expected one, >= 0 and
            finite.

    Returns:
        The new `Posterior`.

    Raises:
        ValueError: for fields of different lengths or without numbers, and outside `jit` for values
            that are out of range or make the belief overflow.
    """
    check_posterior(posterior)
    transitions = _check_are_transitions(transitions)
    check_real(weight=weight, noise_precision=noise_precision)
    check_scalars(noise_precision=noise_precision)
    check_transition_shapes(transitions, weight)
    if not is_concrete(*transitions, weight, noise_precision):
        return _belief.update(posterior, transitions, weight, noise_precision)
    check_transitions(transitions, *posterior.reward_mean.shape, weight=weight)
    if posterior.support is None:
        if is_concrete(posterior.concentration):
            check_possible(transitions, np.asarray(weight), posterior.concentration)
    elif is_concrete(posterior.support):
        check_supported(transitions, np.asarray(weight), posterior.support)
    if not 0 <= float(noise_precision) < np.inf:
        raise ValueError(
            f"noise_precision must be finite and not negative, got {noise_precision}; "
            f"{NEARLY_NOISELESS:g} is as good as no noise"
        )
    with np.errstate(over="ignore"):  # of what is too large for the dtype; the result tells
        updated = _belief.update(posterior, transitions, weight, noise_precision)
    if is_concrete(*jax.tree.leaves(updated)):
        _check_overflow(updated)
    return updated


def _check_are_transitions(transitions: Any) -> Transitions:
    """The transitions with arrays in place of lists."""
    if not isinstance(transitions, Transitions):
        raise ValueError(
            f"transitions must be posterior.Transitions, got {type(transitions).__name__}"
        )
    check_real(**{f"transitions.{name}": x for name, x in transitions._asdict().items()})
    transitions = Transitions(*(x if hasattr(x, "dtype") else jnp.asarray(x) for x in transitions))
    check_indices(transitions)
    return transitions


def _check_overflow(posterior: Posterior) -> None:
    if not _belief.is_finite(posterior):
        raise ValueError(
            f"weight, noise_precision or transitions.reward are so large that the belief overflows "
            f"in {posterior.reward_mean.dtype}; scale the rewards, or use a smaller weight"
        )


def mean(posterior: Posterior) -> Mdp:
    """The posterior mean MDP (eq. (2), mean_model).

    Dense rows leave out the probability of the terminal state. With a `support`, that probability
    stands on the successor S where it is listed.

    Raises:
        ValueError: if it is no `Posterior`.
    """
    check_posterior(posterior)
    return _belief.mean(posterior)


def sample(posterior: Posterior, key: chex.PRNGKey, n: int) -> Mdp:
    """Draws n MDPs from the belief (Algorithm 1 line 2, sample_mdp).

    With a scalar prior, every entry of a Dirichlet row gets a Gamma(prior) variate from a table of
    quantiles (interpolated to a relative 1e-3), a visited entry also an exact Gamma(count) variate,
    and the row is normalized. Counts should not be far below 1: a row that underflows as a whole
    becomes one-hot at a random entry. With an array prior or a `support`, all are exact. There are
    no gradients with respect to concentrations.

    Args:
        posterior: the belief.
        key: consumed.
        n: number of MDPs, N.

    Returns:
        An `Mdp` with transitions `[N, S, A, S]`, or a `Sparse` with one `next_state` for all
        members, and rewards `[N, S, A]`.

    Raises:
        ValueError: if n is below 1 or too large for the memory, and outside `jit` if a
            concentration is below its prior; under `jit`, such rows are NaN.
    """
    check_posterior(posterior)
    check_key(key)
    n = check_count("n", n)
    remedy = "use a smaller n, and sample several times"
    _check_memory(sample_bytes(posterior, n), f"sampling n = {n} MDPs", remedy)
    if is_concrete(posterior.concentration, posterior.prior):
        # A table holds the prior's part of each concentration; without one, nothing is in parts.
        prior = 0.0 if posterior.log_quantile is None else posterior.prior
        with jax.ensure_compile_time_eval():  # a belief that a jitted function closes over
            least = float(
                jnp.min(posterior.concentration - prior * (1 - _dirichlet.PRIOR_ROUNDING))
            )
        if not least >= 0:
            raise ValueError(
                "posterior.concentration must be at least posterior.prior, or 0 for an array "
                f"prior, got {-least:.3g} less; to forget data, start from another prior"
            )
    return _belief.sample(posterior, key, n)


def sample_bytes(posterior: Posterior, n: int) -> int:
    """Approximate bytes that `sample` takes for n MDPs: its result and XLA's work space on CPU."""
    size = math.prod(posterior.concentration.shape)
    entries = SAMPLE_ARRAYS * n * size
    if posterior.log_quantile is None:
        entries += _dirichlet.work_entries(size, n)
    return entries * posterior.concentration.dtype.itemsize
