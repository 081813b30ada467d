"""Whether an environment continues exactly from where it was saved: tried out, not believed.

`state` saves what an environment keeps in its attributes, its spaces' generators and its simulator.
A closure, a class attribute, a module's variable or NumPy's global generator is not among that, and
an environment that uses one would go on with another trajectory, without an error.
"""

import contextlib
import random
import sys
from typing import Any

import gymnasium
import numpy as np

from qusac_jax.environments import encoding, space_generators, state
from qusac_jax.environments.action_cost import FaultyEnvironmentError
from qusac_jax.environments.make import make, spec_of

_STEPS = 16  # before the state is saved, after it, and after the next reset
_LEAST_GROWTH = 4  # numbers or list items more in half of that: more than counters make
_LIBRARIES = {"abc", "builtins", "dm_control", "dm_env", "gymnasium", "qusac_jax", "shimmy"}
_REMEDY = (
    "keep all state in attributes and draw from self.np_random; or accept with "
    "--resume_env=restart that a continued run begins its episodes anew"
)

Record = tuple[str, Any]  # what an environment returned: its name and its bits


def check_continues(name: str, *, seed: int = 0) -> int:
    """Takes steps, goes back and takes them again, over a reset: all bits must be the same.

    It goes back to the beginning of an episode, which is where a checkpoint at the end of one is,
    and into the middle of one; with a new copy of the environment, as a continued run does, and
    with the one that has taken the steps. Both are closed; Python's and NumPy's global generators
    and those of spaces that belong to the class are left as they were.

    Args:
        name: as for `make`.
        seed: of the environment, in [0, 2**32).

    Returns:
        Size in bytes of its state, without that of the simulator.

    Raises:
        ValueError: if the repeated steps differ, or the size of the state grows.
        FaultyEnvironmentError: if the environment has a bug, or state that cannot be saved.
    """
    env, copy = make(name, seed=seed), make(name, seed=(seed + 1) % 2**32)
    try:
        with space_generators.kept(state.layers(env)):
            shape = (2 * _STEPS, spec_of(env).action_size)
            actions = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
            env.reset()
            first = _check_from_here(env, copy, name, actions)
            state.restore(env, first)
            _check_size(env, name, actions)
            return state.needs(_check_from_here(env, copy, name, actions))
    finally:
        env.close()
        copy.close()


def _check_from_here(
    env: gymnasium.Env, copy: gymnasium.Env, name: str, actions: np.ndarray
) -> state.Captured:
    """Saves the state, takes the steps, and takes them again from it; returns the state."""
    saved = state.capture(env)
    expected = _records(env, actions)
    for restored in (copy, env):
        difference = _difference(restored, saved, actions, expected)
        if difference is not None:
            raise ValueError(
                f"env: {name!r} cannot be resumed exactly: put back to where it was saved, "
                f"{difference}; {_cause(env, actions)}; {_REMEDY}"
            )
    return saved


def _records(env: gymnasium.Env, actions: np.ndarray) -> list[Record]:
    """What comes of the actions, with a reset in the middle and where episodes end."""
    records: list[Record] = []
    for t, action in enumerate(actions):
        if t == _STEPS:
            records.append(_first_observation(env, t))
        observation, reward, terminated, truncated, _ = env.step(action)
        after = f"after {t + 1} steps"
        records += [
            (f"the observation {after}", np.asarray(observation).tobytes()),
            (f"the reward {after}", reward),
            (f"the end of the episode {after}", (terminated, truncated)),
        ]
        if terminated or truncated:
            records.append(_first_observation(env, t + 1))
    return records


def _first_observation(env: gymnasium.Env, steps: int) -> Record:
    observation = np.asarray(env.reset()[0]).tobytes()
    return f"the first observation of an episode, {steps} steps later,", observation


def _difference(
    env: gymnasium.Env, saved: state.Captured, actions: np.ndarray, expected: list[Record]
) -> str | None:
    """The first thing that is not as it was; None if all is."""
    state.restore(env, saved)
    try:
        found = _records(env, actions)
    except FaultyEnvironmentError as error:
        return f"it fails ({error})"
    for (what, wanted), (_, value) in zip(expected, found, strict=False):
        if value != wanted:
            return f"{what} is another"
    return None


def _check_size(env: gymnasium.Env, name: str, actions: np.ndarray) -> None:
    """Steps an environment after a reset; one whose state grows must not outgrow its place.

    Raises:
        ValueError: if it does, in the course of an episode or from episode to episode.
    """
    first = state.weights(env)
    _step(env, actions[: _STEPS // 2])
    half = state.weights(env)
    _step(env, actions[_STEPS // 2 : _STEPS])
    full = state.weights(env)
    growing = [
        key
        for key in full
        if min(full[key] - half.get(key, 0), half.get(key, 0) - first.get(key, 0)) >= _LEAST_GROWTH
    ]
    if not growing:
        return
    capacity = state.capacity(name)
    for done in range(_STEPS, spec_of(env).max_episode_steps, _STEPS):
        _step(env, actions[:_STEPS])
        if state.needs(state.capture(env)) > capacity:
            _refuse_growth(name, growing, f"after {done + _STEPS} steps it is too large")
    env.reset()
    left = state.weights(env)
    if any(left[key] >= full[key] for key in growing if key in left):
        _refuse_growth(name, growing, "a reset does not make it small again")


def _refuse_growth(name: str, growing: list[tuple[str, str]], when: str) -> None:
    owner, key = growing[0]
    raise ValueError(
        f"env: {name!r} cannot be resumed exactly, because the attribute {key!r} of its {owner} "
        f"grows: {when} for a checkpoint; empty it in reset and keep it short, or accept with "
        "--resume_env=restart that a continued run begins its episodes anew"
    )


def _step(env: gymnasium.Env, actions: np.ndarray) -> None:
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def _cause(env: gymnasium.Env, actions: np.ndarray) -> str:
    """What the environment changes outside itself, as far as it can be seen."""
    before = _surroundings(env)
    env.reset()
    _step(env, actions)
    after = _surroundings(env)
    changed = [what for what in before if after.get(what) != before[what]]
    changed += [what for what in after if what not in before]
    if not changed:
        return "it keeps state where it cannot be found, such as in a closure or an object's slots"
    return f"it changes {changed[0]}"


def _surroundings(env: gymnasium.Env) -> dict[str, Any]:
    """Generators, model, class attributes and module variables, as bits or in encoded form."""
    found = {
        "NumPy's global random generator": encoding.encode(space_generators.of_numpy()),
        "Python's global random generator": hash(random.getstate()),
    }
    for owner in {cls for layer in state.layers(env) for cls in type(layer).__mro__}:
        if owner.__module__.partition(".")[0] in _LIBRARIES:
            continue
        module = sys.modules.get(owner.__module__)
        for key, value in _plain(vars(owner)).items():
            found[f"the class attribute {key!r} of {owner.__name__}"] = value
        for key, value in _plain(vars(module) if module else {}).items():
            found[f"the variable {key!r} of the module {owner.__module__!r}"] = value
    for name, content in state.unsaved_model(env).items():
        found[f"{name!r} of MuJoCo's model, which is not among what is saved"] = content
    return found


def _plain(values: Any) -> dict[str, Any]:
    """Those that can be encoded, encoded."""
    plain = {}
    for key, value in list(values.items()):
        if not key.startswith("__"):
            with contextlib.suppress(encoding.NotPlainError, RecursionError):
                plain[key] = encoding.encode(value)
    return plain
