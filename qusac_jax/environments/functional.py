"""Environments on the device: pure functions of a state, stepped without the host.

`FunctionalEnvironment` is what such an environment offers. Brax, MuJoCo Playground and a class of
your own, written with `jax.numpy`, fit it; `streams` steps it. Written for one environment; callers
`vmap`. Axes: O observation size, A action size.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax._fields import is_integer
from qusac_jax._importing import import_named
from qusac_jax._messages import with_type
from qusac_jax.environments import device_tasks
from qusac_jax.environments.names import parse_name
from qusac_jax.task import TerminationFn

State = Any  # a pytree of arrays of fixed shapes and dtypes


class FunctionalEnvironment(Protocol):
    """An environment as pure, traceable functions; the sizes and bounds are constants."""

    # Properties here, so that plain attributes of any of the types fit.

    @property
    def observation_size(self) -> int:
        """O."""
        ...

    @property
    def action_size(self) -> int:
        """A."""
        ...

    @property
    def action_low(self) -> float | tuple[float, ...]:
        """Lower bound of `step`'s actions, for all or for each; -1 of the agent is mapped to it."""
        ...

    @property
    def action_high(self) -> float | tuple[float, ...]:
        """Upper bound, likewise for 1."""
        ...

    @property
    def episode_length(self) -> int:
        """Steps after which an episode is cut off at the latest."""
        ...

    @property
    def termination(self) -> TerminationFn | str | None:
        """When an episode ends, as a function of what the agent observes, for its model's rollouts.

        A function, a key of `TERMINATIONS`, or None where observations do not tell.
        """
        ...

    def reset(self, key: chex.PRNGKey) -> State:
        """The first state of an episode."""
        ...

    def step(self, state: State, action: jax.Array, key: chex.PRNGKey) -> State:
        """The next state; action `[A]` within the bounds."""
        ...

    def observation(self, state: State) -> jax.Array:
        """What the agent sees of a state, `[O]` float32."""
        ...

    def reward(self, state: State, action: jax.Array, next_state: State) -> jax.Array:
        """Of a step, `[]` float32, without action cost."""
        ...

    def terminated(self, state: State) -> jax.Array:
        """Whether the task ended in this state, `[]` bool."""
        ...

    def truncated(self, state: State) -> jax.Array:
        """Whether the episode is cut off here before `episode_length`, `[]` bool."""
        ...


class DrawnEnvironment(FunctionalEnvironment, Protocol):
    """One that videos can be made of."""

    @property
    def frames_per_second(self) -> float:
        """At which a step takes as long in a video as it does in the task."""
        ...

    def draw(self, state: State) -> np.ndarray:
        """A picture of a state, `[H, W, 3]` uint8; called outside of compiled functions."""
        ...


def is_drawn(env: FunctionalEnvironment) -> TypeGuard[DrawnEnvironment]:
    """Whether videos can be made of an environment."""
    return hasattr(env, "draw") and hasattr(env, "frames_per_second")


def is_functional(name: str) -> bool:
    """Whether an environment of this name is stepped on the device.

    Raises:
        ValueError: if there is no such environment.
    """
    return parse_name(name).is_on_device


@functools.lru_cache(maxsize=8)  # the same object again: functions compiled for it are found
def load(name: str) -> FunctionalEnvironment:
    """The environment that a name stands for, checked.

    Args:
        name: `brax:NAME`, `playground:NAME`, or `functional:MODULE:NAME` of a class, or of
            another function that takes nothing and returns a `FunctionalEnvironment`. That imports,
            and so executes, the module.

    Raises:
        ValueError: for another name, a package that is not installed, and what `check` says.
    """
    parsed = parse_name(name)
    if parsed.family == "brax":
        env = device_tasks.load_brax(parsed.task)
    elif parsed.family == "playground":
        env = device_tasks.load_playground(parsed.task)
    elif parsed.family == "functional":
        try:
            env = import_named(parsed.task, "env")()
        except (Exception, SystemExit) as error:  # of the user's own code
            raise ValueError(
                f"env: {name!r} cannot be made: {with_type(error)}; name a function that takes no "
                "arguments and returns a functional environment"
            ) from error
    else:
        raise ValueError(
            f"env: {name!r} is stepped on the host; on the device there are brax:NAME, "
            "playground:NAME and functional:MODULE:NAME"
        )
    check(env, name)
    return env


def check(env: FunctionalEnvironment, name: str = "environment") -> None:
    """Raises `ValueError` unless an environment keeps to the protocol.

    Its functions are traced, not run.

    Args:
        env: what is checked.
        name: for the message.
    """
    missing = [field for field in _FIELDS if not hasattr(env, field)]
    if missing:
        raise ValueError(
            f"env: {name!r} has no {', '.join(missing)}; define all of {', '.join(_FIELDS)}"
        )
    for field in ("observation_size", "action_size", "episode_length"):
        value = getattr(env, field)
        if not is_integer(value) or value < 1:
            raise ValueError(f"env: {field} of {name!r} must be a positive integer, got {value!r}")
    ends = env.termination
    if not (ends is None or isinstance(ends, str) or callable(ends)):
        raise ValueError(
            f"env: termination of {name!r} must be a name of `environments.TERMINATIONS`, a "
            f"function, or None where it is not known, got {ends!r}"
        )
    _check_bounds(env, name)
    first, second = _traced(functools.partial(_states, env), name, jax.random.key(0))
    _check_states(first, second, name)
    found = _traced(functools.partial(_values, env), name, first, second)
    expected = {
        "observation": ((env.observation_size,), jnp.floating),
        "reward": ((), jnp.number),
        "terminated": ((), jnp.bool_),
        "truncated": ((), jnp.bool_),
    }
    for field, (shape, kind) in expected.items():
        value = found[field]
        is_kind = jnp.issubdtype(value.dtype, kind) and not jnp.issubdtype(
            value.dtype, jnp.complexfloating
        )
        if value.shape != shape or not is_kind:
            raise ValueError(
                f"env: {field} of {name!r} must be {kind.__name__}{list(shape)}, got "
                f"{value.dtype}{list(value.shape)}"
            )
    try:
        hash(env)
    except TypeError as error:
        raise ValueError(
            f"env: {name!r} cannot be a static argument of jax.jit: {with_type(error)}; define it "
            "with @dataclass(frozen=True), or without __eq__"
        ) from error


_FIELDS = tuple(name for name in vars(FunctionalEnvironment) if not name.startswith("_"))


def _states(env: FunctionalEnvironment, key: chex.PRNGKey) -> tuple[State, State]:
    """After a reset and after a step."""
    first = env.reset(key)
    second = env.step(first, jnp.zeros(env.action_size), key)
    return jax.tree.map(jnp.asarray, (first, second))


def _values(env: FunctionalEnvironment, first: State, second: State) -> dict[str, jax.Array]:
    """What an environment says of a step."""
    values = {
        "observation": env.observation(second),
        "reward": env.reward(first, jnp.zeros(env.action_size), second),
        "terminated": env.terminated(second),
        "truncated": env.truncated(second),
    }
    return {name: jnp.asarray(value) for name, value in values.items()}


def _traced(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """The shapes of what a function of an environment returns."""
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:  # other people's environments raise anything
        raise ValueError(
            f"env: {name!r} cannot be traced: {with_type(error)}; write it with jax.numpy"
        ) from error


def _check_states(first: State, second: State, name: str) -> None:
    structures = [jax.tree.structure(state) for state in (first, second)]
    if structures[0] != structures[1]:
        raise ValueError(
            f"env: the states of {name!r} after reset and after step have different structures, "
            f"{structures[0]} and {structures[1]}; return the same"
        )
    kinds = [[(x.shape, str(x.dtype)) for x in jax.tree.leaves(state)] for state in (first, second)]
    differing = [f"{a} and {b}" for a, b in zip(*kinds, strict=True) if a != b]
    if differing:
        raise ValueError(
            f"env: the states of {name!r} after reset and after step differ in shape or dtype: "
            f"{'; '.join(differing[:3])}; return the same"
        )


def _check_bounds(env: FunctionalEnvironment, name: str) -> None:
    try:
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), (env.action_size,))
            for bound in (env.action_low, env.action_high)
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"env: action_low and action_high of {name!r} must be numbers, or one for each of the "
            f"{env.action_size} components, got {env.action_low!r} and {env.action_high!r}"
        ) from error
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(
            f"env: actions of {name!r} must have finite bounds, action_low below action_high, got "
            f"{low.tolist()} and {high.tolist()}"
        )
