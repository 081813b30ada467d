"""Checks of what a user passes to `qusac_jax.posterior`.

Axes: S states, A actions, T observed transitions, K possible successors of a pair.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax._checks import check_real, check_scalars, is_concrete

_LEAST_CONCENTRATION = 1e-30  # of a scalar prior; float32 quantiles need more than this


def check_dtype(dtype: Any) -> np.dtype:
    """The dtype; raises `ValueError` unless it is float32 or float64."""
    try:
        known = jnp.dtype(dtype)
    except TypeError:
        known = jnp.dtype(object)
    if dtype is None or known not in (jnp.float32, jnp.float64):
        raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")
    if jax.dtypes.canonicalize_dtype(known) != known:
        raise ValueError("dtype is float64, which JAX has off; set jax_enable_x64, or use float32")
    return known


def check_number(name: str, value: Any, dtype: np.dtype) -> None:
    """Raises `ValueError` unless it is one number that is finite in that dtype."""
    check_real(**{name: value})
    check_scalars(**{name: value})
    largest = float(jnp.finfo(dtype).max)
    if is_concrete(value) and not abs(float(value)) <= largest:  # false for NaN
        raise ValueError(f"{name} must be finite in {dtype}, got {value}")


def check_posterior(posterior: Any) -> None:
    """Raises `ValueError` unless it is one `Posterior`; works on tracers too."""
    if not (hasattr(posterior, "concentration") and hasattr(posterior, "reward_mean")):
        raise ValueError(
            f"posterior must be a Posterior, as init returns it, got {type(posterior).__name__}"
        )
    shape = np.shape(posterior.reward_mean)
    if len(shape) != 2:
        raise ValueError(
            f"posterior must be one belief with rewards [S, A], got rewards of shape {shape}; use "
            "`jax.vmap` for several"
        )


def check_support(support, num_states: int, num_actions: int) -> np.ndarray:
    """The successors `[S, A, K]` in NumPy; raises `ValueError` unless they can be some."""
    support = np.asarray(support)
    shape = (num_states, num_actions)
    if support.ndim != 3 or support.shape[:2] != shape or not support.size:
        raise ValueError(
            f"support must have shape [S, A, K] with [S, A] = {shape}, got {support.shape}"
        )
    if not np.issubdtype(support.dtype, np.integer):
        raise ValueError(f"support must be integers, got {support.dtype}")
    if support.min() < -1 or support.max() > num_states:
        raise ValueError(
            f"support must be in -1 .. {num_states} (-1 for no successor, S for the terminal "
            f"state), got values from {support.min()} to {support.max()}"
        )
    if not np.all(support.max(-1) >= 0):
        state, action = np.argwhere(support.max(-1) < 0)[0]
        raise ValueError(
            f"support must list a successor of every pair, got none for state {state} and action "
            f"{action}; {num_states} is the terminal state"
        )
    return support


def check_prior(prior: np.ndarray, shape: tuple[int, int, int], dtype: np.dtype) -> None:
    """Raises `ValueError` unless it is a scalar or of that shape, and can be drawn from."""
    largest = float(jnp.finfo(dtype).max) / shape[-1]  # a row is summed
    if prior.ndim == 0:
        if not _LEAST_CONCENTRATION < prior <= largest:
            raise ValueError(
                f"concentration must be positive and finite, got {prior}; it must lie between "
                f"{_LEAST_CONCENTRATION} and {largest:.3g} in {dtype}"
            )
    elif prior.shape != shape:
        raise ValueError(
            f"concentration must be a scalar or have shape {shape} (the last column is the "
            f"terminal state), got {prior.shape}"
        )
    elif not (np.all(prior >= 0) and np.all(prior <= largest) and np.all(prior.sum(-1) > 0)):
        raise ValueError(
            f"concentration must be finite (in {dtype}) and non-negative with a positive entry in "
            f"each row, got values from {prior.min()} to {prior.max()} and a smallest row sum of "
            f"{prior.sum(-1).min()}"
        )
    elif np.any((prior > 0) & (prior <= _LEAST_CONCENTRATION)):
        raise ValueError(
            f"concentration must be 0 or above {_LEAST_CONCENTRATION}, got "
            f"{prior[prior > 0].min()}; zeros exclude a next state"
        )


def check_indices(transitions: Any) -> None:
    """Raises `ValueError` unless states and actions are integers; works on tracers too."""
    for name in ("state", "action", "next_state"):
        dtype = getattr(transitions, name).dtype
        if not jnp.issubdtype(dtype, jnp.integer):
            raise ValueError(f"transitions.{name} must be integers, got {dtype}")


def check_transition_shapes(transitions: Any, weight: Any) -> None:
    """Raises `ValueError` unless all fields, and the weight, have one length T; of tracers too."""
    shapes = {name: np.shape(values) for name, values in transitions._asdict().items()}
    if len(set(shapes.values())) > 1 or len(shapes["state"]) != 1:
        raise ValueError(f"transitions must have one length T in all fields, got shapes {shapes}")
    if np.shape(weight) not in ((), shapes["state"]):
        raise ValueError(
            f"weight must be a scalar or have shape [T] = {shapes['state']}, got {np.shape(weight)}"
        )


def check_transitions(
    transitions: Any, num_states: int, num_actions: int, *, weight: Any = 1.0
) -> None:
    """Raises `ValueError` unless the values fit the sizes; for concrete arrays.

    Args:
        transitions: `Transitions`, `[T]` each; what has weight 0 may be anything.
        num_states: S.
        num_actions: A.
        weight: scalar or `[T]`, as for `update`.
    """
    weight = np.asarray(weight)
    if not np.all((weight >= 0) & np.isfinite(weight)):
        raise ValueError(
            f"weight must be finite and not negative, got values from {weight.min()} to "
            f"{weight.max()}"
        )
    is_counted = np.broadcast_to(weight > 0, np.shape(transitions.state))
    bounds = {"state": num_states, "action": num_actions, "next_state": num_states + 1}
    for name, bound in bounds.items():
        values = np.asarray(getattr(transitions, name))[is_counted]
        if values.size and (values.min() < 0 or values.max() >= bound):
            raise ValueError(
                f"transitions.{name} must be in 0 .. {bound - 1}, got values from {values.min()} "
                f"to {values.max()}"
            )
    if not np.all(np.isfinite(np.asarray(transitions.reward)[is_counted])):
        raise ValueError("transitions.reward must be finite, got NaN or infinity; drop those rows")


def check_possible(transitions: Any, weight: np.ndarray, concentration: jax.Array) -> None:
    """Raises `ValueError` if a counted transition has the concentration 0: it was excluded."""
    # JAX compares indices with the sizes of axes, for which small integers have no room.
    state, action, next_state = (
        np.asarray(x).astype(np.int64)
        for x in (transitions.state, transitions.action, transitions.next_state)
    )
    counted = np.flatnonzero(np.broadcast_to(weight > 0, state.shape))
    with jax.ensure_compile_time_eval():  # a belief that a jitted function closes over
        found = concentration[state[counted], action[counted], next_state[counted]]
    known = np.asarray(found) > 0
    if not known.all():
        i = counted[np.argmin(known)]
        raise ValueError(
            f"transitions.next_state is {next_state[i]} after state {state[i]} and action "
            f"{action[i]}, which the belief's concentration of 0 excludes; start from a wider one"
        )


def check_supported(transitions: Any, weight: np.ndarray, support: jax.Array) -> None:
    """Raises `ValueError` if a counted transition leads outside of `support` `[S, A, K]`."""
    state, action, _, next_state = (np.asarray(x) for x in transitions)
    counted = np.flatnonzero(np.broadcast_to(weight > 0, state.shape))
    successors = np.asarray(support)[state[counted], action[counted]]
    known = (successors == next_state[counted][:, None]).any(-1)
    if not known.all():
        i = counted[np.argmin(known)]
        raise ValueError(
            f"transitions.next_state must be in the belief's support, got state {next_state[i]} "
            f"after state {state[i]} and action {action[i]}; start from a wider support"
        )
