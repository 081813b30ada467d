"""When an episode really ends, as JAX functions of a transition, for rollouts of a learned model.

A time limit is no termination. The functions for Gymnasium's MuJoCo tasks use the documented
default healthy ranges of versions v4 and v5, in which the position x (and y) is left out of the
observation. Hopper, Walker2d and HalfCheetah have the same observations and healthy ranges in v2
and v3, the versions that D4RL's data come from, and share the functions; the versions differ in
rewards and physics only (v5 pays for being healthy only while healthy, and Walker2d-v5 has another
friction of the right foot). The choice of a function is static; the functions are traceable and
map over any leading axes. One of your own is named `MODULE:FUNCTION`. Axes: O observation size,
A action size.
"""

import types
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from qusac_jax._importing import import_named
from qusac_jax._messages import did_you_mean, with_type
from qusac_jax.environments import functional
from qusac_jax.environments.names import parse_name
from qusac_jax.task import TerminationFn


def never(observation: jax.Array, action: jax.Array, next_observation: jax.Array) -> jax.Array:
    """Only time limits end an episode: suite tasks, Pendulum, HalfCheetah, ..."""
    del observation, action
    return jnp.zeros(next_observation.shape[:-1], bool)


def _unless_healthy(healthy: jax.Array, next_observation: jax.Array) -> jax.Array:
    # NaN and Inf are unhealthy too, as in Gymnasium.
    return ~(healthy & jnp.isfinite(next_observation).all(-1))


def hopper(observation: jax.Array, action: jax.Array, next_observation: jax.Array) -> jax.Array:
    """Hopper-v2 to v5: height o[0] > 0.7, |angle o[1]| < 0.2, |o[1:]| < 100.

    The simulator bounds the velocities themselves, while the observation clips them to [-10, 10]:
    an episode that ended by a velocity beyond 100 alone cannot be recognized. v2 also asks for a
    finite position x, which no observation shows.
    """
    del observation, action
    height, angle = next_observation[..., 0], next_observation[..., 1]
    bounded = (jnp.abs(next_observation[..., 1:]) < 100).all(-1)
    return _unless_healthy((height > 0.7) & (jnp.abs(angle) < 0.2) & bounded, next_observation)


def walker2d(observation: jax.Array, action: jax.Array, next_observation: jax.Array) -> jax.Array:
    """Walker2d-v2 to v5: height o[0] in (0.8, 2), angle o[1] in (-1, 1)."""
    del observation, action
    height, angle = next_observation[..., 0], next_observation[..., 1]
    healthy = (height > 0.8) & (height < 2.0) & (jnp.abs(angle) < 1.0)
    return _unless_healthy(healthy, next_observation)


def ant(observation: jax.Array, action: jax.Array, next_observation: jax.Array) -> jax.Array:
    """Ant-v4/v5: height o[0] in [0.2, 1]."""
    del observation, action
    height = next_observation[..., 0]
    return _unless_healthy((height >= 0.2) & (height <= 1.0), next_observation)


def humanoid(observation: jax.Array, action: jax.Array, next_observation: jax.Array) -> jax.Array:
    """Humanoid-v4/v5: height o[0] in (1, 2)."""
    del observation, action
    height = next_observation[..., 0]
    return _unless_healthy((height > 1.0) & (height < 2.0), next_observation)


def inverted_pendulum(
    observation: jax.Array, action: jax.Array, next_observation: jax.Array
) -> jax.Array:
    """InvertedPendulum-v4/v5: |angle o[1]| <= 0.2."""
    del observation, action
    return _unless_healthy(jnp.abs(next_observation[..., 1]) <= 0.2, next_observation)


def inverted_double_pendulum(
    observation: jax.Array, action: jax.Array, next_observation: jax.Array
) -> jax.Array:
    """InvertedDoublePendulum-v4/v5: height of the tip above 1.

    Both poles are 0.6 long; o[1], o[2] are the sines and o[3], o[4] the cosines of the joint
    angles. Gymnasium reads the height one physics step earlier than the observation, so that the
    two can differ close to the threshold.
    """
    del observation, action
    sine, cosine = next_observation[..., 1:3], next_observation[..., 3:5]
    cosine_of_sum = cosine[..., 0] * cosine[..., 1] - sine[..., 0] * sine[..., 1]
    height = 0.6 * (cosine[..., 0] + cosine_of_sum)
    return _unless_healthy(height > 1.0, next_observation)


def mountain_car_continuous(
    observation: jax.Array, action: jax.Array, next_observation: jax.Array
) -> jax.Array:
    """MountainCarContinuous-v0: position o[0] >= 0.45 with velocity o[1] >= 0."""
    del observation, action
    return (next_observation[..., 0] >= 0.45) & (next_observation[..., 1] >= 0.0)


TERMINATIONS: Mapping[str, TerminationFn] = types.MappingProxyType(
    {
        function.__name__: function
        for function in (
            never,
            hopper,
            walker2d,
            ant,
            humanoid,
            inverted_pendulum,
            inverted_double_pendulum,
            mountain_car_continuous,
        )
    }
)
GYM_TERMINATIONS: Mapping[str, str] = types.MappingProxyType(
    {
        "Pendulum-v1": "never",
        "MountainCarContinuous-v0": "mountain_car_continuous",
        **{
            f"{task}-{version}": function
            for version in ("v4", "v5")
            for task, function in {
                "Ant": "ant",
                "HalfCheetah": "never",
                "Hopper": "hopper",
                "Humanoid": "humanoid",
                "HumanoidStandup": "never",
                "InvertedDoublePendulum": "inverted_double_pendulum",
                "InvertedPendulum": "inverted_pendulum",
                "Pusher": "never",
                "Reacher": "never",
                "Swimmer": "never",
                "Walker2d": "walker2d",
            }.items()
        },
        **{
            f"{task}-{version}": function
            for version in ("v2", "v3")  # cannot be built any more, but D4RL's data are theirs
            for task, function in {
                "HalfCheetah": "never",
                "Hopper": "hopper",
                "Walker2d": "walker2d",
            }.items()
        },
    }
)

# Observation and action sizes of the tasks that a function is for, in all their versions and Brax.
_SIZES: Mapping[str, tuple[tuple[int, ...], int]] = types.MappingProxyType(
    {
        "hopper": ((11,), 3),
        "walker2d": ((17,), 6),
        "ant": ((27, 105, 111), 8),
        "humanoid": ((244, 270, 348, 376), 17),
        "inverted_pendulum": ((4,), 1),
        "inverted_double_pendulum": ((8, 9, 11), 1),
        "mountain_car_continuous": ((2,), 1),
    }
)


def termination_name(name: str) -> str:
    """The key in `TERMINATIONS` that belongs to an environment, "own" for its own, or "unknown"."""
    parsed = parse_name(name)
    if parsed.is_on_device:
        known = functional.load(name).termination
        if isinstance(known, str):
            _check_known(known, f"termination of env {name!r}")
            return known
        return "unknown" if known is None else "own"
    if parsed.family == "dmc":
        return "never"  # but for lqr, whose unbounded actions `make` refuses
    return GYM_TERMINATIONS.get(parsed.task, "unknown")


def termination_fn(name: str, termination: str | TerminationFn | None = None) -> TerminationFn:
    """The function that says whether a transition ends the episode.

    Args:
        name: an environment, as for `make`.
        termination: overrides the choice: a key of `TERMINATIONS`, a function of your own, or
            where to find it, `MODULE:FUNCTION`. That imports, and so executes, the module.

    Returns:
        A traceable function of observation `[..., O]`, action `[..., A]` and next observation
        `[..., O]`, all as `make`'s environment gives them, that returns booleans `[...]`.

    Raises:
        ValueError: if no function is known for the environment or of this name, or if the module
            cannot be imported.
    """
    if callable(termination):
        return termination
    key = termination_name(name) if termination is None else termination
    if key == "own" and callable(own := functional.load(name).termination):
        return own
    if ":" in key:
        return import_named(key, "termination")
    if key == "unknown":
        raise ValueError(
            f"termination: it is not known when an episode of {name!r} terminates (known: all of "
            f"dmc:, brax: and playground:, and gym: {', '.join(sorted(GYM_TERMINATIONS))}); pass "
            f"--termination=never if it never does, another of {', '.join(TERMINATIONS)}, or a "
            "function of your own as MODULE:FUNCTION"
        )
    _check_known(key, "termination")
    return TERMINATIONS[key]


def _check_known(key: str, what: str) -> None:
    if key not in TERMINATIONS:
        raise ValueError(
            f"{what} {key!r} is unknown{did_you_mean(key, TERMINATIONS)}; choose from "
            f"{', '.join(TERMINATIONS)}, or a function of your own as MODULE:FUNCTION"
        )


def check_fits(name: str, termination: str, *, observation_size: int, action_size: int) -> None:
    """Raises `ValueError` if a function of `TERMINATIONS` is for other tasks than this one.

    Args:
        name: of the environment.
        termination: key of `TERMINATIONS`. `never` fits all; whether it is true shows in the data.
        observation_size: O.
        action_size: A.
    """
    if termination not in _SIZES:
        return
    tasks = [task for task, key in GYM_TERMINATIONS.items() if key == termination]
    sizes, actions = _SIZES[termination]
    known = termination_name(name)
    is_other = known not in ("unknown", termination)
    if is_other or observation_size not in sizes or action_size != actions:
        instead = (
            f"leave --termination out, as {known!r} is right for it"
            if is_other
            else (f"name a function of your own as MODULE:FUNCTION; it may call {termination}")
        )
        raise ValueError(
            f"termination {termination!r} is for {', '.join(tasks)}, with observations of "
            f"{' or '.join(map(str, sizes))} numbers and actions of {actions}; {name!r} has "
            f"{observation_size} and {action_size}: {instead}"
        )


def check_termination(
    termination: TerminationFn, *, observation_size: int, action_size: int
) -> None:
    """Raises `ValueError` unless a function can be asked when an episode ends.

    It is traced, not run: on two transitions, and on three times two, as it must map over any
    leading axes.

    Args:
        termination: what is checked.
        observation_size: O.
        action_size: A.
    """
    name = f"termination {getattr(termination, '__name__', termination)!r}"
    for leading in ((2,), (3, 2)):
        observation = jax.ShapeDtypeStruct((*leading, observation_size), jnp.float32)
        action = jax.ShapeDtypeStruct((*leading, action_size), jnp.float32)
        sizes = f"observations {list(observation.shape)} and actions {list(action.shape)}"
        try:
            done = jax.eval_shape(termination, observation, action, observation)
        except Exception as error:  # other people's functions raise anything
            raise ValueError(
                f"{name} cannot be traced on {sizes}: {with_type(error)}; write it with jax.numpy "
                "as a function of observation, action and next_observation"
            ) from error
        given = (getattr(done, "shape", None), getattr(done, "dtype", None))
        if given != (leading, jnp.bool_):
            described = f"{given[1]}{list(given[0])}" if given[0] is not None else repr(done)
            raise ValueError(
                f"{name} must return booleans {list(leading)} for {sizes}, got {described}; "
                "index the last axis as next_observation[..., 0] and compare it"
            )
