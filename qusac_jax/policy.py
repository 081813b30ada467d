"""A trained policy as a function of observations.

Its files are written by `save_policy` and read by `load_actor` (`qusac_jax._policy_files`). Axes: R
seeds, O observation size, A action size.
"""

import pathlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax._checks import check_count, check_key, check_real, is_concrete
from qusac_jax._policy_files import BOUNDS, load_actor, save_policy
from qusac_jax.qusac import networks

if TYPE_CHECKING:
    import gymnasium

__all__ = ["Policy", "load_actor", "load_policy", "save_policy"]


class Policy:
    """A policy that acts in the units of the environment that it was trained in.

    `policy(observation, key=None)` maps observations `[..., O]` to actions `[..., A]` between
    `action_low` and `action_high`: the mean action without a key, a draw with one. It is compiled,
    and can itself be used under `jit` and `vmap`.

    Attributes:
        observation_size: O.
        action_size: A.
        action_low: `[A]` float32, least action of the environment.
        action_high: `[A]` float32, largest one.
        description: what else is known of the run, such as `env` and `seeds`.
    """

    def __init__(self, params: networks.Params, description: dict[str, Any]):
        """Takes the weights of one seed, and what `save_policy` wrote about them."""
        self.description = description
        # In double precision: exact for bounds such as -2 and 2.
        low, high = (np.asarray(description[name], np.float64) for name in BOUNDS)
        self._center, self._scale = np.float32((low + high) / 2), np.float32((high - low) / 2)
        self.action_low, self.action_high = low.astype(np.float32), high.astype(np.float32)
        self.action_size = len(self.action_low)
        self.observation_size = params["params"]["MLP_0"]["Dense_0"]["kernel"].shape[0]
        actor = networks.actor_of(params, tuple(description["hidden"]), self.action_size)

        @jax.jit
        def act(observation: jax.Array, key: jax.Array | None) -> jax.Array:
            if key is None:
                return networks.mean_action(actor, params, observation)
            return networks.sample_action(actor, params, observation, key)[0]

        self._act = act

    def __repr__(self) -> str:
        """Its environment and sizes."""
        return (
            f"Policy(env={self.description.get('env')!r}, observation_size="
            f"{self.observation_size}, action_size={self.action_size})"
        )

    def __call__(self, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """Actions `[..., A]` in the environment's own units.

        Args:
            observation: `[..., O]`, flat, as in training.
            key: of the draw, consumed; None for the mean action.

        Raises:
            ValueError: for observations of another size or, outside `jit`, with NaN or infinity.
        """
        action = self._center + self._scale * self.normalized(observation, key)
        return jnp.clip(action, self.action_low, self.action_high)

    def normalized(self, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """The same as `policy(observation, key)`, in [-1, 1].

        For `environments.make` and `environments.VectorEnvironment`, whose actions lie there.
        """
        check_real(observation=observation)
        shape = np.shape(observation)
        if not shape or shape[-1] != self.observation_size:
            raise ValueError(
                f"observation must have shape [..., {self.observation_size}], got {shape}; flatten "
                "it as in training"
            )
        if key is not None:
            check_key(key)
        if is_concrete(observation):
            with np.errstate(over="ignore"):
                observation = np.asarray(observation, np.float32)
            if not np.isfinite(observation).all():
                raise ValueError("observation must be finite in float32, got NaN or infinity in it")
        return self._act(jnp.asarray(observation, jnp.float32), key)

    def environment(self, *, seed: int | None = None, render: bool = False) -> "gymnasium.Env":
        """The environment of the training: for `action = policy(observation)`.

        As `environments.make` builds it, with flat float32 observations, a time limit and the
        training's action cost in its reward, but with actions in the environment's own units. The
        module of `gym:MODULE:ID` is imported, and so executed.

        Args:
            seed: of its random numbers, in [0, 2**32).
            render: whether `render()` is to return pictures.

        Raises:
            ValueError: if it cannot be built here, is one on the device, which is none of
                Gymnasium's, or has other sizes or bounds than in training.
        """
        from gymnasium.wrappers import RescaleAction

        from qusac_jax import environments  # slow to import, and not needed for acting

        env = environments.make(
            self.description["env"],
            action_cost=self.description.get("action_cost"),
            seed=seed,
            render=render,
        )
        low, high = np.asarray(env.get_wrapper_attr("action_bounds"), np.float32)
        is_same = np.array_equal(low, self.action_low) and np.array_equal(high, self.action_high)
        if not is_same or env.observation_space.shape != (self.observation_size,):
            env.close()
            raise ValueError(
                f"env: {self.description['env']!r} is another here than in training: its actions "
                f"lie in {low.tolist()} to {high.tolist()} and its observations have shape "
                f"{env.observation_space.shape}, but the policy's actions lie in "
                f"{self.action_low.tolist()} to {self.action_high.tolist()} and its observations "
                f"have {self.observation_size} numbers; install the package version of the training"
            )
        if np.all(low == -1) and np.all(high == 1):
            return env
        return RescaleAction(env, low, high)


def load_policy(path: str | pathlib.Path, *, seed_index: int = 0) -> Policy:
    """Loads the policy of a run.

    Args:
        path: a run directory, or the `policy` directory in it.
        seed_index: which seed of a run with several, in [0, R).

    Raises:
        ValueError: if there is no complete policy at `path`, if a file of it has changed since it
            was written, or if there is no such seed in it.
    """
    stacked, description = load_actor(path)
    num_seeds = jax.tree.leaves(stacked)[0].shape[0]
    seed_index = check_count("seed_index", seed_index, least=0)
    if seed_index >= num_seeds:
        raise ValueError(f"seed_index must lie in [0, {num_seeds}), got {seed_index}")
    params = jax.tree.map(lambda x: jnp.asarray(x[seed_index]), stacked)
    return Policy(params, description)
