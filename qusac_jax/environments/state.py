"""Exact capture and restoration of one environment: physics, task, random numbers, counters.

Around the simulator's state, see `physics`, lie the plain attributes of the Python objects
(wrappers, task, and environment), and the random generators of their spaces. What lies elsewhere is
not saved; `continuation` finds out whether anything does.
"""

import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from qusac_jax.environments import encoding, physics, space_generators
from qusac_jax.environments.action_cost import FaultyEnvironmentError
from qusac_jax.environments.make import make

# Objects that carry no state of an episode, or none that this module does not save otherwise.
_CONSTANT_TYPES = (
    gymnasium.Space,
    EnvSpec,
    physics.mujoco.MjModel,
    physics.mujoco.MjData,
    type,
    types.BuiltinFunctionType,
    types.FunctionType,
    types.MethodType,
    types.ModuleType,
)
_CONSTANT_ATTRIBUTES = frozenset(
    {"_saved_kwargs", "env", "fullpath", "metadata", "mujoco_renderer", "render_mode", "spec"}
)
_SPACE = "space "  # before the names of spaces among those of attributes
_FIRST_STEPS = 16  # by which an environment has all that it keeps
_FRAME = 8  # bytes before the Python state, for its length


class Captured(NamedTuple):
    """The state of one environment."""

    # float64 in one axis each, empty without MuJoCo
    physics: np.ndarray  # its integration state and derived fields
    model: np.ndarray  # the model fields and options that may vary
    python: bytes  # attributes of the Python objects


def capture(env: gymnasium.Env) -> Captured:
    """Everything that the environment's future depends on.

    Raises:
        FaultyEnvironmentError: if an attribute holds something that cannot be saved exactly.
    """
    named = [(type(layer).__name__, _saved_parts(layer)) for layer in layers(env)]
    encoder = encoding.Encoder([parts for _, parts in named])
    attributes = []
    for layer_name, parts in named:
        plain = {}
        for key, value in parts.items():
            try:
                plain[key] = encoder.encode(value)
            except encoding.NotPlainError as error:
                raise FaultyEnvironmentError(
                    f"env: {_name(env)!r} cannot be resumed exactly, because the attribute {key!r} "
                    f"of its {layer_name} is a {error}, which holds state that cannot be "
                    "saved; keep such state out of its attributes, choose another environment, or "
                    "let its episodes begin anew (--resume_env=restart)"
                ) from error
        attributes.append(plain)
    pair = _mujoco_pair(env)
    bits = physics.capture(*pair) if pair else (np.zeros(0), np.zeros(0))
    # The values in `attributes` are encoded already; a list of dicts of them is plain JSON.
    python = encoding.to_json({"name": _name(env), "layers": attributes})
    return Captured(*bits, python)


def restore(env: gymnasium.Env, captured: Captured) -> None:
    """Puts `env`, built under the same name, into the captured state.

    Raises:
        ValueError: if that is of another environment, or was saved by other package versions.
    """
    current = list(layers(env))
    saved_state = encoding.from_json(captured.python)
    if saved_state["name"] != _name(env):
        raise ValueError(
            f"environment state belongs to {saved_state['name']!r}, not to {_name(env)!r}; restore "
            "it for the environment that it was saved from"
        )
    attributes = saved_state["layers"]
    if len(attributes) != len(current):
        raise ValueError(
            f"environment state has {len(attributes)} layers, but {_name(env)!r} has "
            f"{len(current)}; restore it with the package versions that saved it"
        )
    decoder = encoding.Decoder()
    for layer, saved in zip(current, attributes, strict=True):
        for key in _variable_attributes(layer).keys() - saved.keys():
            del vars(layer)[key]  # it came after the state was saved
        for key, value in saved.items():
            _assign(layer, key, value, decoder)
    if pair := _mujoco_pair(env):
        physics.restore(*pair, captured.physics, captured.model)


def sizes(env: gymnasium.Env) -> tuple[int, int]:
    """Lengths of `Captured.physics` and `Captured.model`."""
    pair = _mujoco_pair(env)
    return physics.sizes(*pair) if pair else (0, 0)


def unsaved_model(env: gymnasium.Env) -> dict[str, bytes]:
    """What `capture` does not save of MuJoCo's model, see `physics.unsaved`."""
    pair = _mujoco_pair(env)
    return physics.unsaved(pair[0]) if pair else {}


def capacity(name: str) -> int:
    """Bytes to keep for the Python state of one environment of this name.

    Twice what one takes that was just reset with seed 0, as numbers have more or fewer digits; or,
    where that is too little for it some steps later, twice what it takes then. Measured on a
    separate environment, so that a run and its continuation get the same.
    """
    enough = lambda state: 1024 * (2 + 2 * len(state.python) // 1024)
    env = make(name, seed=0)
    try:
        with space_generators.kept(layers(env)):
            env.reset()
            size = enough(capture(env))
            action = np.zeros(env.action_space.shape or (), np.float32)
            for _ in range(_FIRST_STEPS):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
            later = capture(env)
            return size if needs(later) <= size else enough(later)
    finally:
        env.close()


def needs(captured: Captured) -> int:
    """Bytes of its Python state, to be compared with `capacity`."""
    return _FRAME + len(captured.python)


def weights(env: gymnasium.Env) -> dict[tuple[str, str], int]:
    """How many numbers, items and characters each attribute holds, by layer and name."""
    content = encoding.from_json(capture(env).python)["layers"]
    return {
        (type(layer).__name__, key): encoding.weight(value)
        for layer, attributes in zip(layers(env), content, strict=True)
        for key, value in attributes.items()
    }


def pad(data: bytes, capacity: int, name: str) -> np.ndarray:
    """`data` with its length in front and zeros behind, `[capacity]` uint8."""
    framed = len(data).to_bytes(_FRAME, "little") + data
    if len(framed) > capacity:
        raise FaultyEnvironmentError(
            f"env: {name!r} cannot be resumed exactly, because its Python state grows: it needs "
            f"{len(framed)} bytes, more than {capacity}; choose another environment, or let its "
            "episodes begin anew (--resume_env=restart)"
        )
    return np.frombuffer(framed.ljust(capacity, b"\0"), np.uint8)


def unpad(array: np.ndarray) -> bytes:
    """Inverse of `pad`."""
    framed = array.tobytes()
    return framed[_FRAME : _FRAME + int.from_bytes(framed[:_FRAME], "little")]


def check_tree(
    tree: dict[str, np.ndarray], expected: dict[str, tuple[tuple[int | None, ...], type]]
) -> None:
    """Raises `ValueError` unless the tree has the expected shapes and dtypes; None fits all."""
    if set(tree) != set(expected):
        raise ValueError(
            f"environment state must have the entries {sorted(expected)}, got {sorted(tree)}; it "
            "was saved by something else"
        )
    for key, (shape, dtype) in expected.items():
        found = np.asarray(tree[key])
        fits = len(found.shape) == len(shape) and all(
            want in (None, got) for got, want in zip(found.shape, shape, strict=True)
        )
        if not fits or found.dtype != dtype:
            raise ValueError(
                f"environment state {key!r} must be {np.dtype(dtype)}{list(shape)}, got "
                f"{found.dtype}{list(found.shape)}; restore it for the same environment and number "
                "of seeds, with the package versions that saved it, as NumPy arrays (JAX narrows "
                "64-bit numbers)"
            )


def layers(env: gymnasium.Env) -> Iterator[Any]:
    """The wrappers from outside to inside, the environment, and dm_control's parts of it."""
    layer = env
    while isinstance(layer, gymnasium.Wrapper):
        yield layer
        layer = layer.env
    yield layer
    control = _control_environment(layer)
    if control is not None:
        yield control
        yield control.task


def _control_environment(layer: gymnasium.Env) -> Any | None:
    inner = vars(layer).get("_env")
    return inner if hasattr(inner, "physics") and hasattr(inner, "task") else None


def _mujoco_pair(env: gymnasium.Env) -> tuple[Any, Any] | None:
    control = _control_environment(env.unwrapped)
    if control is not None:
        return control.physics.model.ptr, control.physics.data.ptr
    attributes = vars(env.unwrapped)
    model, data = attributes.get("model"), attributes.get("data")
    if isinstance(model, physics.mujoco.MjModel) and isinstance(data, physics.mujoco.MjData):
        return model, data
    return None


def _variable_attributes(layer: Any) -> dict[str, Any]:
    constant = {*_CONSTANT_ATTRIBUTES, *getattr(type(layer), "constant_attributes", ())}
    if not isinstance(layer, gymnasium.Env):
        constant |= {"_physics", "_task"}  # dm_control's environment; both are saved by themselves
    elif _control_environment(layer) is not None:
        constant |= {"_env", "_ezpickle_args", "_ezpickle_kwargs", "env_type", "render_kwargs"}
    return {
        key: value
        for key, value in vars(layer).items()
        if key not in constant
        and not key.startswith("_ezpickle")
        and not isinstance(value, _CONSTANT_TYPES)
    }


def _saved_parts(layer: Any) -> dict[str, Any]:
    """Attributes, and the generators of spaces that have drawn something."""
    drawn = {
        _SPACE + key: generators
        for key, space in space_generators.spaces_of(layer).items()
        if any(generators := space_generators.generators(space))
    }
    return {**_variable_attributes(layer), **drawn}


def _assign(layer: Any, key: str, encoded: Any, decoder: encoding.Decoder) -> None:
    if key.startswith(_SPACE):
        space = space_generators.spaces_of(layer)[key.removeprefix(_SPACE)]
        now = space_generators.generators(space)
        space_generators.set_generators(space, decoder.decode(encoded, now))
        return
    current = vars(layer).get(key)
    value = decoder.decode(encoded, current)
    if key not in vars(layer) or value is not current:
        vars(layer)[key] = value


def _name(env: gymnasium.Env) -> str:
    return env.get_wrapper_attr("name")
