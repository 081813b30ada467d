"""Several copies of a functional environment, with the interface of `VectorEnvironment`.

Axes: R environments (one per seed), O observation size, A action size.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import _keys
from qusac_jax.environments import functional, streams
from qusac_jax.environments.action_cost import FaultyEnvironmentError
from qusac_jax.environments.functional import FunctionalEnvironment
from qusac_jax.environments.make import Spec, spec
from qusac_jax.environments.process_vector import ProcessVector
from qusac_jax.environments.streams import StepResult, Stream
from qusac_jax.environments.vector import VectorEnvironment
from qusac_jax.environments.vector_checks import check_actions_shape, check_seeds, which_active


class DeviceVector:
    """R functional environments with automatic reset, each with its own seed.

    For a loop on the host, which pays for a call to the device at every step; a loop on the device
    takes `environment` and `streams` instead. Environment i gives the same trajectory as when it is
    alone.
    """

    spec: Spec
    environment: FunctionalEnvironment
    streams: Stream  # leaves [R, ...]; the next `reset` or `step` goes on from what is put here

    def __init__(self, name: str, seeds: Sequence[int], *, action_cost: float | None = None):
        """Loads the environment and begins an episode for each seed.

        Args:
            name: as for `functional.load`.
            seeds: R >= 1 different streams of random numbers, each in [0, 2**32).
            action_cost: rho >= 0; by default that of the paper for its tasks and 0 for all others.

        Raises:
            ValueError: as `functional.load`, and if there are no seeds.
        """
        check_seeds(seeds)
        self.spec = spec(name, action_cost)
        self.environment = functional.load(name)
        self._num_envs = len(seeds)
        keys = jax.vmap(streams.first_key)(jnp.asarray(np.asarray(seeds, np.uint32)))
        self._begin(keys)

    def __len__(self) -> int:
        """R, the number of environments."""
        return self._num_envs

    def reset(self) -> np.ndarray:
        """Starts a new episode everywhere.

        Returns:
            Observations `[R, O]`, float32.
        """
        self._begin(self.streams.key)
        return np.array(self.streams.observation)

    def _begin(self, keys: jax.Array) -> None:
        self.streams = _start(keys, env=self.environment)
        if not np.isfinite(self.streams.observation).all():
            raise FaultyEnvironmentError(not_finite(self.spec.name))

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepResult:
        """Steps environments and resets those whose episode ended.

        Args:
            actions: `[R, A]` in [-1, 1]; what lies outside is clipped.
            active: `[R]` bool, which to step; default all. The others stay as they are, with
                reward 0.

        Returns:
            NumPy arrays.

        Raises:
            ValueError: if a shape is wrong or an action is not finite.
            FaultyEnvironmentError: if an observation or a reward is not finite.
        """
        actions = np.asarray(actions, np.float32)
        check_actions_shape(actions, len(self), self.spec)
        active = which_active(active, len(self))
        if not np.isfinite(actions[active]).all():
            raise ValueError(
                f"actions for {self.spec.name!r} must be finite, got {actions.tolist()}; check "
                "the policy"
            )
        self.streams, result = _step(
            self.streams,
            actions,
            active,
            env=self.environment,
            action_cost=self.spec.action_cost,
        )
        result = jax.tree.map(np.asarray, result)
        returned = (result.next_observation, result.reward, result.observation)
        if not all(np.isfinite(x).all() for x in returned):
            raise FaultyEnvironmentError(not_finite(self.spec.name))
        return result

    def state(self) -> dict[str, np.ndarray]:
        """Everything the future depends on, as NumPy arrays of fixed shapes and dtypes."""
        return {
            f"leaf_{i}": np.array(_keys.to_data(leaf))
            for i, leaf in enumerate(jax.tree.leaves(self.streams))
        }

    def set_state(self, tree: dict[str, np.ndarray]) -> np.ndarray:
        """Continues where `state` was called, exactly.

        Args:
            tree: what `state` returned, for the same environment and R.

        Returns:
            Observations `[R, O]` to act on next.

        Raises:
            ValueError: if the tree belongs to another environment.
        """
        expected = self.state()
        kinds = [{k: (v.shape, v.dtype) for k, v in x.items()} for x in (tree, expected)]
        if kinds[0] != kinds[1]:
            raise ValueError(
                f"environment state does not fit {self.spec.name!r} with {len(self)} seeds and the "
                "installed versions; restore it with those that it was saved with"
            )
        leaves, structure = jax.tree.flatten(self.streams)
        values = [
            _keys.from_data(leaf, jnp.asarray(tree[f"leaf_{i}"])) for i, leaf in enumerate(leaves)
        ]
        self.streams = jax.tree.unflatten(structure, values)
        return np.array(self.streams.observation)

    def close(self) -> None:
        """There is nothing to free."""


AnyVector = VectorEnvironment | ProcessVector | DeviceVector


def vector(
    name: str, seeds: Sequence[int], *, action_cost: float | None = None, num_processes: int = 1
) -> AnyVector:
    """Copies of one environment, whether it is stepped on the host or on the device.

    Args:
        name: as for `make`, or as for `functional.load`.
        seeds: R >= 1, one for each copy, in [0, 2**32).
        action_cost: rho >= 0; by default that of the paper for its tasks and 0 for all others.
        num_processes: how many processes step environments on the host, at least 1, which is the
            caller's own; more are started. No effect on the device; results do not depend on it.

    Raises:
        ValueError: as `VectorEnvironment` and `DeviceVector`, and for `num_processes` below 1.
    """
    if num_processes < 1:
        raise ValueError(f"num_processes must be at least 1, got {num_processes}")
    check_seeds(seeds)
    if functional.is_functional(name):
        return DeviceVector(name, seeds, action_cost=action_cost)
    if min(num_processes, len(seeds)) > 1:
        return ProcessVector(name, seeds, action_cost=action_cost, num_processes=num_processes)
    return VectorEnvironment(name, seeds, action_cost=action_cost)


def not_finite(name: str, when: str = "") -> str:
    """What is wrong where an environment answers a finite action with NaN or infinity."""
    return (
        f"environment {name!r} returned an observation or a reward that is not finite{when}; its "
        "simulation diverged or it has a bug: use a smaller time step, or another environment"
    )


@functools.partial(jax.jit, static_argnames="env")
def _start(keys: jax.Array, *, env: FunctionalEnvironment) -> Stream:
    return jax.vmap(functools.partial(streams.start, env))(keys)


@functools.partial(jax.jit, static_argnames=("env", "action_cost"), donate_argnums=0)
def _step(
    state: Stream,
    actions: jax.Array,
    active: jax.Array,
    *,
    env: FunctionalEnvironment,
    action_cost: float,
) -> tuple[Stream, StepResult]:
    advance = functools.partial(streams.advance, env, action_cost=action_cost)
    step_one = lambda stream, action, active: advance(stream, action, active=active)
    return jax.vmap(step_one)(state, actions, active)
