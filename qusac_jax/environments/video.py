"""Videos of a policy, recorded without a display.

Which OpenGL library renders is decided once per process, when dm_control is first imported, and a
broken one can take the process down with it. So a video is made by another process. It plays the
same actions from the same seed again, or draws the states of an environment on the device.
"""

import contextlib
import functools
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import _keys
from qusac_jax.environments import functional, streams
from qusac_jax.environments.make import make, spec
from qusac_jax.environments.names import parse_name

BACKENDS = ("egl", "osmesa")  # values of MUJOCO_GL that need no display, in the order of trying
_RENDER_TIMEOUT_S = 1800
_GIF_FRAMES_PER_SECOND = 12.5  # about; a GIF is not compressed along time
_REPLAY = "import sys; from qusac_jax.environments import video; video.replay(*sys.argv[1:])"


class Recording(NamedTuple):
    """The episode that a video shows."""

    path: Path
    episode_return: float  # with action cost
    episode_task_return: float
    num_steps: int


def record_video(
    name: str,
    policy: Callable[[np.ndarray], Any],
    path: str | os.PathLike[str],
    *,
    seed: int = 0,
    action_cost: float | None = None,
    max_steps: int | None = None,
    gif: bool = False,
) -> Recording:
    """Plays one episode and writes it as an mp4.

    Args:
        name: an environment, as for `make`, or as for `functional.load` one that can be drawn.
        policy: from an observation `[O]` to an action `[A]` in [-1, 1].
        path: the file to write, ending in .mp4; missing folders are made.
        seed: of the environment, in [0, 2**32).
        action_cost: as for `make`; changes the returns only.
        max_steps: to stop before the episode ends.
        gif: whether to write a GIF as well, beside the mp4 and with fewer frames: pages and
            TensorBoard show it without a player.

    Returns:
        A `Recording` with the returns of the episode, whose video is at `path`.

    Raises:
        ValueError: for an unknown environment, one on the device that cannot be drawn, a path that
            does not end in .mp4, or `max_steps` below 1.
        RuntimeError: if the packages for videos are missing, or neither EGL nor OSMesa works.
    """
    path = Path(path)
    if path.suffix != ".mp4":
        raise ValueError(f"path must end in .mp4, got {str(path)!r}")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    check_video_packages()
    play = _play_on_device if functional.is_functional(name) else _play
    episode, returns = play(name, policy, seed, action_cost, max_steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        episode_path = Path(folder) / "episode.npz"
        np.savez(episode_path, allow_pickle=False, **episode)
        # Rendered beside the target and moved there: a failure leaves no half-written video.
        targets = [path, path.with_suffix(".gif")] if gif else [path]
        rendered = [to.with_name(f".{to.stem}.partial{to.suffix}") for to in targets]
        try:
            _render_in_subprocess(name, str(seed), str(episode_path), *map(str, rendered))
            for partial, target in zip(rendered, targets, strict=True):
                partial.replace(target)
        finally:
            for partial in rendered:
                partial.unlink(missing_ok=True)
    return Recording(path, *returns)


def replay(name: str, seed: str, episode_path: str, path: str, gif: str | None = None) -> None:
    """Renders a saved episode; what the other process runs, with strings for arguments."""
    imageio = importlib.import_module("imageio.v2")
    with np.load(episode_path, allow_pickle=False) as saved:
        episode = dict(saved)
    if functional.is_functional(name):
        frames_per_second, frames = _draw_states(name, episode)
    else:
        frames_per_second, frames = _draw_actions(name, int(seed), episode)
    frames_per_second = max(1, min(round(frames_per_second), 100))
    every = math.ceil(frames_per_second / _GIF_FRAMES_PER_SECOND)
    with contextlib.ExitStack() as stack:
        # Encoders want even sizes, which 16 guarantees; ours and Gymnasium's are multiples of it.
        mp4 = stack.enter_context(imageio.get_writer(path, fps=frames_per_second))
        small = None
        if gif is not None:
            milliseconds = 1000 * every / frames_per_second
            small = stack.enter_context(imageio.get_writer(gif, duration=milliseconds, loop=0))
        for number, frame in enumerate(frames):
            mp4.append_data(frame)
            if small is not None and number % every == 0:
                small.append_data(frame)


def _draw_actions(
    name: str, seed: int, episode: dict[str, np.ndarray]
) -> tuple[float, Iterator[np.ndarray]]:
    """Frames per second, and the frames of an episode of these actions."""
    env = make(name, seed=seed, render=True)
    frames_per_second = env.metadata.get("render_fps", 30)
    if hasattr(env.unwrapped, "control_timestep"):
        # shimmy gives milliseconds per step under this name.
        frames_per_second = 1.0 / env.get_wrapper_attr("control_timestep")()

    def frames() -> Iterator[np.ndarray]:
        env.reset()
        yield _frame(env.render())
        for action in episode["actions"]:
            env.step(action)
            yield _frame(env.render())
        env.close()

    return frames_per_second, frames()


def _draw_states(name: str, episode: dict[str, np.ndarray]) -> tuple[float, Iterator[np.ndarray]]:
    """Frames per second, and the frames of these states."""
    env = functional.load(name)
    assert functional.is_drawn(env)
    leaves, structure = jax.tree.flatten(jax.eval_shape(env.reset, jax.random.key(0)))
    values = [_keys.from_data(like, episode[f"leaf_{i}"]) for i, like in enumerate(leaves)]
    states = (
        jax.tree.unflatten(structure, [value[t] for value in values]) for t in range(len(values[0]))
    )
    return env.frames_per_second, (_frame(env.draw(state)) for state in states)


def _frame(picture: Any) -> np.ndarray:
    """Raises `ValueError` unless it is a picture."""
    picture = np.asarray(picture)
    if picture.ndim != 3 or picture.shape[-1] != 3 or picture.dtype != np.uint8:
        raise ValueError(
            f"a frame must be uint8 [H, W, 3], got {picture.dtype}{list(picture.shape)}"
        )
    return picture


def _play(
    name: str,
    policy: Callable[[np.ndarray], Any],
    seed: int,
    action_cost: float | None,
    max_steps: int | None,
) -> tuple[dict[str, np.ndarray], tuple[float, float, int]]:
    """The actions of an episode `[T, A]`; its returns with action cost and without, and T."""
    env = make(name, action_cost=action_cost, seed=seed)
    observation, _ = env.reset()
    actions, total, task_total, done = [], 0.0, 0.0, False
    while not done and (max_steps is None or len(actions) < max_steps):
        actions.append(np.array(policy(observation), np.float32))
        observation, reward, terminated, truncated, info = env.step(actions[-1])
        total += float(reward)
        task_total += info["task_reward"]
        done = terminated or truncated
    env.close()
    return {"actions": np.stack(actions)}, (total, task_total, len(actions))


def _play_on_device(
    name: str,
    policy: Callable[[np.ndarray], Any],
    seed: int,
    action_cost: float | None,
    max_steps: int | None,
) -> tuple[dict[str, np.ndarray], tuple[float, float, int]]:
    """The leaves of an episode's states, each `[T + 1, ...]`; its returns and T, as `_play`."""
    env = functional.load(name)
    if not functional.is_drawn(env):
        raise ValueError(f"{name!r} cannot be drawn; define draw(state) and frames_per_second")
    cost = spec(name, action_cost).action_cost
    advance = jax.jit(functools.partial(streams.step, env, action_cost=cost))
    stream = jax.jit(functools.partial(streams.start, env))(streams.first_key(jnp.uint32(seed)))
    to_host = lambda state: [np.asarray(_keys.to_data(leaf)) for leaf in jax.tree.leaves(state)]
    states, done = [to_host(stream.state)], False
    while not done and (max_steps is None or len(states) <= max_steps):
        action = jnp.asarray(policy(np.asarray(stream.observation)), jnp.float32)
        stream, result = advance(stream, action)
        states.append(to_host(stream.state))
        done = bool(result.terminated | result.truncated)
    leaves = {f"leaf_{i}": np.stack(x) for i, x in enumerate(zip(*states, strict=True))}
    returns = float(stream.episode_return), float(stream.episode_task_return)
    return leaves, (*returns, int(stream.episode_length))


def check_video_packages() -> None:
    """Raises `RuntimeError` if a package that `record_video` needs is missing."""
    missing = [
        package
        for package in ("imageio", "imageio_ffmpeg")
        if importlib.util.find_spec(package) is None
    ]
    if missing:
        raise RuntimeError(
            f"videos need {' and '.join(missing)}; install the extra: pip install -e '.[video]'"
        )


def _render_in_subprocess(name: str, *arguments: str) -> None:
    chosen = os.environ.get("MUJOCO_GL")
    failures = []
    for backend in (chosen,) if chosen else BACKENDS:
        environment = {
            **os.environ,
            "MUJOCO_GL": backend,
            "PYOPENGL_PLATFORM": backend,
            "SDL_VIDEODRIVER": "dummy",  # Gymnasium's classic tasks draw with pygame
            "JAX_PLATFORMS": "cpu",  # leaves the accelerator to the training process
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        if backend not in BACKENDS:
            environment.pop("PYOPENGL_PLATFORM")
        try:
            finished = subprocess.run(
                [sys.executable, "-c", _REPLAY, name, *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=_RENDER_TIMEOUT_S,
                check=False,
                close_fds=False,  # spawns instead of forking, which JAX's threads do not survive
            )
        except subprocess.TimeoutExpired:
            failures.append(f"{backend}: not done after {_RENDER_TIMEOUT_S} s")
            continue
        if finished.returncode == 0:
            return
        reasons = finished.stderr.strip().splitlines() or [f"exit code {finished.returncode}"]
        failures.append(f"{backend}: {reasons[-1]}")
    drawing = f"correct draw of {name!r}, or " if parse_name(name).family == "functional" else ""
    raise RuntimeError(
        f"the video could not be rendered ({'; '.join(failures)}); {drawing}install EGL or OSMesa "
        "(Debian: apt-get install libegl1 libosmesa6) and let MUJOCO_GL be unset, egl or osmesa"
    )
