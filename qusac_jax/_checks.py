"""Checks of what a user passes to `qusac_jax.ube`, and of what comes out."""

import operator
import reprlib

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

ROW_TOLERANCE = 1e-5  # float32 rows of a thousand entries sum to 1 within this
_MAX_ERROR = 1e-2  # expected relative error of values beyond which a result is refused
_ROUNDING_ERRORS = 4  # in machine epsilons and per state: what a row's sum can be off by


def is_concrete(*values) -> bool:
    """Whether no value is being traced, so that it can be checked."""
    return not any(isinstance(value, jax.core.Tracer) for value in values)


def check_real(**values) -> None:
    """Raises `ValueError` unless every value is a real number or an array of them.

    Lists count as arrays, and tracers are looked at too. None is no number.
    """
    for name, value in values.items():
        if hasattr(value, "dtype"):
            dtype = value.dtype
        else:
            try:
                is_number = value is not None and not isinstance(value, str | bytes)
                dtype = jnp.asarray(value).dtype if is_number else None
            except (TypeError, ValueError, OverflowError):  # text, objects, rows that differ
                dtype = None
        is_real = dtype is not None and any(
            jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_)
        )
        if not is_real:
            got = reprlib.repr(value) if dtype is None else f"{dtype}"
            raise ValueError(f"{name} must hold real numbers in rows of one length, got {got}")


def check_scalars(**values) -> None:
    """Raises `ValueError` unless every value is None or a real number; works on tracers too."""
    check_real(**{name: value for name, value in values.items() if value is not None})
    for name, value in values.items():
        if value is not None and np.ndim(value):
            raise ValueError(
                f"{name} must be a scalar, got shape {np.shape(value)}; use `jax.vmap` for several"
            )


def check_discount(discount) -> None:
    """Raises `ValueError` unless the discount is in [0, 1]."""
    check_real(discount=discount)
    if not 0 <= float(discount) <= 1:
        raise ValueError(f"discount must be in [0, 1], got {float(discount)}")


def check_finite(name: str, array) -> None:
    """Raises `ValueError` if the array has an entry that is NaN or infinite."""
    if not np.all(np.isfinite(np.asarray(array))):
        raise ValueError(f"{name} must be finite, got NaN or infinity; remove those entries")


def check_count(name: str, value, least: int = 1) -> int:
    """The value as an `int`.

    Raises:
        ValueError: unless it is an integer (NumPy's too) of at least `least`.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    if count is None or isinstance(value, bool) or count < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return count


def check_shapes(
    transition, reward, policy, mean_transition=None, mean_reward=None, *, num_batch_axes: int
) -> None:
    """Raises `ValueError` unless ranks and sizes agree; works on tracers too."""
    lead = ("N",) * num_batch_axes

    def named(*axes):
        return "[" + ", ".join(axes) + "]"

    rank = num_batch_axes + 3
    if transition.ndim != rank or transition.shape[-1] != transition.shape[-3]:
        raise ValueError(
            f"transition must have shape {named(*lead, 'S', 'A', 'S')}, got {transition.shape}"
        )
    if 0 in transition.shape:
        raise ValueError(
            f"transition must have at least one entry on each of the axes "
            f"{named(*lead, 'S', 'A', 'S')}, got {transition.shape}"
        )
    pair = transition.shape[-3:-1]
    expected = {
        "reward": (reward, transition.shape[:-1], named(*lead, "S", "A")),
        "policy": (policy, pair, "[S, A]"),
        "mean_transition": (mean_transition, transition.shape[-3:], "[S, A, S]"),
        "mean_reward": (mean_reward, pair, "[S, A]"),
    }
    for name, (array, shape, axes) in expected.items():
        if array is not None and array.shape != shape:
            raise ValueError(
                f"{name} must have shape {axes} = {shape} to go with transition "
                f"{transition.shape}, got {array.shape}"
            )


def check_problem(
    transition, reward, policy, discount, mean_transition=None, mean_reward=None
) -> None:
    """Raises `ValueError` unless the values make a problem that can be solved.

    For use outside `jit`. The solvers of `qusac_jax.ube` call it wherever they can.

    Args:
        transition: `[S, A, S]` or `[N, S, A, S]`; rows of probabilities that sum to at most 1.
        reward: `[S, A]` or `[N, S, A]`; finite.
        policy: `[S, A]`; rows of probabilities that sum to 1.
        discount: in [0, 1]; with 1, the policy must terminate from every state.
        mean_transition: None or `[S, A, S]` like `transition`.
        mean_reward: None or `[S, A]`; finite.

    Raises:
        ValueError: naming the argument, its value and the remedy.
    """
    check_real(transition=transition, reward=reward, policy=policy, discount=discount)
    means = {"mean_transition": mean_transition, "mean_reward": mean_reward}
    check_real(**{name: array for name, array in means.items() if array is not None})
    check_shapes(
        *(np.asarray(array) for array in (transition, reward, policy)),
        *(None if array is None else np.asarray(array) for array in (mean_transition, mean_reward)),
        num_batch_axes=int(np.ndim(transition) > 3),
    )
    check_scalars(discount=discount)
    check_discount(discount)
    check_policy(policy)
    for name, array in (("reward", reward), ("mean_reward", mean_reward)):
        if array is not None:
            check_finite(name, array)
    for name, array in (("transition", transition), ("mean_transition", mean_transition)):
        if array is not None:
            check_transition(array, name=name)
            if discount == 1:
                _check_terminates(np.asarray(array), np.asarray(policy), name)


def check_transition(transition, *, name: str = "transition") -> None:
    """Raises `ValueError` unless the last axis holds probabilities that sum to at most 1."""
    with jax.ensure_compile_time_eval():  # arrays that a jitted function closes over
        lowest, highest = float(jnp.min(transition)), float(jnp.max(jnp.sum(transition, -1)))
    if not np.isfinite(lowest + highest):
        raise ValueError(f"{name} must be finite, got NaN or infinity; remove those entries")
    if lowest < 0:
        raise ValueError(
            f"{name} must hold probabilities, got {lowest:.6g}; clip rounding errors at 0"
        )
    if highest > 1 + ROW_TOLERANCE:
        raise ValueError(
            f"{name} rows must sum to at most 1, got a row that sums to {highest:.6g}; normalise "
            "them, or leave mass out where the episode ends"
        )


def check_policy(policy) -> None:
    """Raises `ValueError` unless every row of `[S, A]` is a distribution over actions."""
    check_real(policy=policy)
    policy = np.asarray(policy)
    total = policy.sum(-1)
    worst = total[np.argmax(np.abs(total - 1))]
    # The comparisons are false for NaN.
    if not (np.all(policy >= 0) and np.abs(worst - 1) <= ROW_TOLERANCE):
        raise ValueError(
            "policy rows must be probabilities that sum to 1, got a row that sums to "
            f"{worst:.6g} and a smallest entry of {policy.min():.6g}; normalise the rows"
        )


def _check_terminates(transition: np.ndarray, policy: np.ndarray, name: str) -> None:
    """Raises unless from each state a positive probability leads out of the MDP."""
    for member in transition.reshape(-1, *transition.shape[-3:]):
        flow = np.einsum("sat,sa->st", member, policy)
        # Slow termination is for `check_result`, which knows the condition number.
        rounding = min(ROW_TOLERANCE, _ROUNDING_ERRORS * len(flow) * np.finfo(flow.dtype).eps)
        ends = flow.sum(-1) < 1 - rounding
        leads_to, found = flow > 0, ends
        while found.any():
            found = leads_to[:, found].any(-1) & ~ends
            ends = ends | found
        if not ends.all():
            raise ValueError(
                f"discount = 1 needs a policy that terminates from every state, but in {name} "
                f"{int((~ends).sum())} states never reach termination, for example state "
                f"{int(np.argmin(ends))}; lower discount below 1, or leave mass out of the rows "
                "where the episode ends"
            )


def check_result(result) -> None:
    """Raises `ValueError` if a result of `qusac_jax.ube` is not to be trusted.

    For use outside `jit`, on what came out of it.

    Args:
        result: anything with `residual` and `condition`. The relative error to be expected of V
            and Q is the machine epsilon of its dtype times `condition`; more than 1 % is refused.
            Variances that are small beside the squared values lose more.

    Raises:
        ValueError: naming the numbers and the remedy.
    """
    condition = np.asarray(result.condition)
    error = np.max(np.finfo(condition.dtype).eps * condition)
    finite = all(np.all(np.isfinite(np.asarray(field))) for field in result)
    if not finite or error > _MAX_ERROR:
        raise ValueError(
            "the Bellman system is singular or ill-conditioned, or holds NaN or infinity: "
            f"condition = {np.max(condition):.3g} expected discounted steps, residual = "
            f"{np.max(np.asarray(result.residual)):.3g}, dtype = {condition.dtype}; lower "
            "discount, make sure that the policy terminates and that the input is finite, or use "
            "float64"
        )
