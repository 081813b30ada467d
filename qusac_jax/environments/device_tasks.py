"""Tasks of Brax and MuJoCo Playground as functional environments; both packages are extras.

Axes: O observation size, A action size.
"""

import contextlib
import importlib
import io
import types
import warnings
from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax._keys import is_key
from qusac_jax._messages import require

# Brax's tasks, and when their episodes end: its observations are those of Gymnasium's tasks.
BRAX_TASKS: Mapping[str, str] = types.MappingProxyType(
    {
        "ant": "ant",
        "halfcheetah": "never",
        "hopper": "hopper",
        "humanoid": "humanoid",
        "humanoidstandup": "never",
        "inverted_double_pendulum": "inverted_double_pendulum",
        "inverted_pendulum": "inverted_pendulum",
        "pusher": "never",
        "reacher": "never",
        "swimmer": "never",
        "walker2d": "walker2d",
    }
)
BRAX_BACKENDS = ("mjx", "spring")  # the first is the default
_BRAX_EPISODE_LENGTH = 1000
_PICTURE = (240, 320)  # height and width, as on the host
# What Playground calls the paper's tasks.
PLAYGROUND_ALIASES: Mapping[str, str] = types.MappingProxyType(
    {
        "acrobot": "AcrobotSwingupSparse",
        "reacher_hard": "ReacherHard",
        "cartpole_swingup": "CartpoleSwingupSparse",
        "pendulum": "PendulumSwingup",
        "point_mass": "PointMass",
        "ball_in_cup": "BallInCup",
    }
)


class PackagedEnvironment:
    """An environment of Brax or Playground, whose states hold observation, reward and end."""

    action_low, action_high = -1.0, 1.0  # both rescale, or take such controls

    def __init__(self, env: Any, *, model: Any, episode_length: int, termination: str):
        """Wraps one.

        Args:
            env: with Brax's `reset(key)`, `step(state, action)`, `action_size` and `dt`.
            model: MuJoCo's model of it, to be drawn.
            episode_length: steps.
            termination: a key of `TERMINATIONS`.
        """
        # Physics take a second to trace; in functions of their own that is done once each, and not
        # wherever they are called. Brax writes into dictionaries of its state: of copies, here.
        self._reset = jax.jit(lambda key: _without_metrics(env.reset(key)), inline=True)
        self._step = jax.jit(lambda *given: _without_metrics(env.step(*given)), inline=True)
        self._like = jax.eval_shape(self._reset, jax.random.key(0))
        (self.observation_size,) = self._like.obs.shape
        self.action_size = int(env.action_size)
        self.frames_per_second = 1.0 / float(env.dt)
        self._model = model
        self._renderer: Any = None  # made when something is drawn
        self.episode_length = episode_length
        self.termination = termination

    def reset(self, key: chex.PRNGKey) -> Any:
        """The first state of an episode."""
        return self._reset(key)

    def step(self, state: Any, action: jax.Array, key: chex.PRNGKey) -> Any:
        """The next state; the simulators draw nothing."""
        del key
        return jax.tree.map(_as, self._step(state, action), self._like)

    def observation(self, state: Any) -> jax.Array:
        """`[O]`."""
        return state.obs

    def reward(self, state: Any, action: jax.Array, next_state: Any) -> jax.Array:
        """`[]`."""
        del state, action
        return next_state.reward

    def terminated(self, state: Any) -> jax.Array:
        """`[]` bool."""
        return state.done > 0.5

    def truncated(self, state: Any) -> jax.Array:
        """Never before the episode's length."""
        del state
        return jnp.zeros((), bool)

    def draw(self, state: Any) -> np.ndarray:
        """`[240, 320, 3]`, by MuJoCo, from its first camera."""
        mujoco: Any = importlib.import_module("mujoco")  # chooses an OpenGL library
        if self._renderer is None:
            self._renderer = mujoco.Renderer(self._model, *_PICTURE)
        # Brax and Playground name what they simulate differently, and so do Brax's simulators.
        physics = state.data if hasattr(state, "data") else state.pipeline_state
        data = mujoco.MjData(self._model)
        data.qpos[:] = physics.qpos if hasattr(physics, "qpos") else physics.q
        mujoco.mj_forward(self._model, data)
        self._renderer.update_scene(data, camera=0 if self._model.ncam else -1)
        return self._renderer.render()


def load_brax(task: str) -> PackagedEnvironment:
    """A task of Brax.

    Args:
        task: `NAME` or `NAME:BACKEND`, known to exist.

    Raises:
        ValueError: if Brax is not installed.
    """
    name, _, backend = task.partition(":")
    install = "pip install -e '.[brax]'"
    with contextlib.redirect_stdout(io.StringIO()):  # MuJoCo prints what else might be installed
        envs = require("brax.envs", what=f"env: 'brax:{task}'", install=install)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that Brax is no longer maintained
        env = envs.get_environment(name, backend=backend or BRAX_BACKENDS[0])
    return PackagedEnvironment(
        env,
        model=env.sys.mj_model,
        episode_length=_BRAX_EPISODE_LENGTH,
        termination=BRAX_TASKS[name],
    )


def load_playground(task: str) -> PackagedEnvironment:
    """A task of MuJoCo Playground's control suite, simulated by MJX.

    Args:
        task: one of Playground's names, or what this package calls a task of the paper.

    Raises:
        ValueError: if Playground is not installed, has no such task or cannot load it.
    """
    install = "pip install -e '.[playground]'"
    package = require("mujoco_playground", what=f"env: 'playground:{task}'", install=install)
    suite = package.dm_control_suite
    name = PLAYGROUND_ALIASES.get(task, task)
    if name not in suite.ALL_ENVS:
        raise ValueError(
            f"env: Playground's control suite has no task {task!r}; it has "
            f"{', '.join([*PLAYGROUND_ALIASES, *suite.ALL_ENVS])}"
        )
    try:
        env = suite.load(name, config_overrides={"impl": "jax"})
        length = int(suite.get_default_config(name).episode_length)
        return PackagedEnvironment(
            env, model=env.mj_model, episode_length=length, termination="never"
        )
    except Exception as error:  # the installed versions of MJX and Playground may not fit
        raise ValueError(
            f"env: 'playground:{task}' cannot be loaded with the installed versions: {error}; use "
            "the task on the host, without the prefix"
        ) from error


def _without_metrics(state: Any) -> Any:
    return state.replace(metrics={})


def _as(value: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
    """A value in the dtype that it has after a reset: some tasks put Python numbers there."""
    return value if is_key(like) else jnp.asarray(value, like.dtype)
