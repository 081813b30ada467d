"""Exact capture and restoration of one environment: physics, task, random numbers, counters.

MuJoCo's own integration state is what a simulator needs to continue bit by bit. Around it lie
model fields that tasks change at resets (targets, terrain), quantities that some tasks read before
the next simulation step (body positions), the plain attributes of the Python objects (wrappers,
task, and environment), and the random generators of their spaces. What lies elsewhere is not saved;
`continuation` finds out whether anything does.
"""

import importlib
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from qusac_jax.environments import encoding, space_generators
from qusac_jax.environments.action_cost import FaultyEnvironmentError
from qusac_jax.environments.make import make

mujoco: Any = importlib.import_module("mujoco")  # compiled, without type information

# What the suite's tasks change in the model from episode to episode or draw when they are built.
MODEL_FIELDS = (
    "body_pos",
    "body_quat",
    "dof_damping",
    "geom_pos",
    "geom_quat",
    "geom_rgba",
    "geom_size",
    "hfield_data",
    "jnt_stiffness",
    "light_pos",
    "mat_rgba",
    "site_pos",
    "site_rgba",
    "site_size",
    "wrap_prm",
)
# What users draw anew, to train for more than one robot. Saved behind the others, as checkpoints of
# before do not have them.
RANDOMIZED_FIELDS = (
    "actuator_acc0",
    "actuator_biasprm",
    "actuator_ctrlrange",
    "actuator_dynprm",
    "actuator_forcerange",
    "actuator_gainprm",
    "actuator_gear",
    "actuator_length0",
    "body_gravcomp",
    "body_inertia",
    "body_invweight0",
    "body_ipos",
    "body_iquat",
    "body_mass",
    "body_subtreemass",
    "dof_M0",
    "dof_armature",
    "dof_frictionloss",
    "dof_invweight0",
    "dof_solimp",
    "dof_solref",
    "eq_data",
    "geom_friction",
    "geom_gap",
    "geom_margin",
    "geom_rbound",
    "geom_solimp",
    "geom_solmix",
    "geom_solref",
    "jnt_axis",
    "jnt_margin",
    "jnt_pos",
    "jnt_range",
    "jnt_solimp",
    "jnt_solref",
    "pair_friction",
    "pair_gap",
    "pair_margin",
    "pair_solimp",
    "pair_solref",
    "qpos0",
    "qpos_spring",
    "tendon_damping",
    "tendon_frictionloss",
    "tendon_invweight0",
    "tendon_length0",
    "tendon_lengthspring",
    "tendon_range",
    "tendon_stiffness",
)
OPTIONS = ("density", "gravity", "magnetic", "timestep", "viscosity", "wind")
# Derived from the state, but as of an earlier point in time: Gymnasium's tasks read positions that
# belong to the last simulation step but one (Ant's xpos) before they step again.
DERIVED_FIELDS = (
    "act_dot",
    "actuator_force",
    "cacc",
    "cfrc_ext",
    "cfrc_int",
    "cinert",
    "cvel",
    "geom_xmat",
    "geom_xpos",
    "qacc",
    "qfrc_actuator",
    "qfrc_constraint",
    "qfrc_passive",
    "sensordata",
    "site_xmat",
    "site_xpos",
    "subtree_angmom",
    "subtree_com",
    "subtree_linvel",
    "xanchor",
    "xaxis",
    "ximat",
    "xipos",
    "xmat",
    "xpos",
    "xquat",
)
# Objects that carry no state of an episode, or none that this module does not save otherwise.
_CONSTANT_TYPES = (
    gymnasium.Space,
    EnvSpec,
    mujoco.MjModel,
    mujoco.MjData,
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
_INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)


class Captured(NamedTuple):
    """The state of one environment."""

    physics: np.ndarray  # [P] float64, MuJoCo's integration state and derived fields; empty without
    # [Q] float64, the model fields and options that may vary; empty without MuJoCo
    model: np.ndarray
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
    mujoco_pair = _mujoco_pair(env)
    if mujoco_pair is None:
        physics = model_fields = np.zeros(0)
    else:
        model, data = mujoco_pair
        integration = np.empty(mujoco.mj_stateSize(model, _INTEGRATION))
        mujoco.mj_getState(model, data, integration, _INTEGRATION)
        physics = np.concatenate([integration, _gather(data, DERIVED_FIELDS)])
        model_fields = np.concatenate(
            [_gather(model, (*MODEL_FIELDS, *RANDOMIZED_FIELDS)), _gather(model.opt, OPTIONS)]
        )
    # The values in `attributes` are encoded already; a list of dicts of them is plain JSON.
    python = encoding.to_json({"name": _name(env), "layers": attributes})
    return Captured(physics, model_fields, python)


def restore(env: gymnasium.Env, captured: Captured) -> None:
    """Puts `env`, built under the same name, into the captured state."""
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
        for key, value in saved.items():
            _assign(layer, key, value, decoder)
    mujoco_pair = _mujoco_pair(env)
    if mujoco_pair is not None:
        model, data = mujoco_pair
        _set_model(model, captured.model)
        size = mujoco.mj_stateSize(model, _INTEGRATION)
        mujoco.mj_setState(model, data, captured.physics[:size], _INTEGRATION)
        # dm_control steps with what depends on positions and velocities already computed.
        mujoco.mj_step1(model, data)
        _scatter(data, DERIVED_FIELDS, captured.physics[size:])


def sizes(env: gymnasium.Env) -> tuple[int, tuple[int, ...]]:
    """Length P of `Captured.physics` and those that `Captured.model` may have, Q the last."""
    mujoco_pair = _mujoco_pair(env)
    if mujoco_pair is None:
        return 0, (0,)
    model, data = mujoco_pair
    integration = mujoco.mj_stateSize(model, _INTEGRATION)
    earlier = _length(model, MODEL_FIELDS)
    today = earlier + _length(model, RANDOMIZED_FIELDS) + _length(model.opt, OPTIONS)
    return integration + _length(data, DERIVED_FIELDS), (earlier, today)


def unsaved_model(env: gymnasium.Env) -> dict[str, bytes]:
    """What `capture` does not save of MuJoCo's model, as bits by name.

    Without cameras and lights, which move along with other fields and concern pictures alone.
    """
    mujoco_pair = _mujoco_pair(env)
    if mujoco_pair is None:
        return {}
    model = mujoco_pair[0]
    left_out = {*MODEL_FIELDS, *RANDOMIZED_FIELDS, *OPTIONS}
    names = [
        name
        for name in dir(model)
        if name not in left_out and not name.startswith(("_", "cam_", "light_"))
    ]
    values = {name: getattr(model, name) for name in names}
    arrays = {name: x.tobytes() for name, x in values.items() if isinstance(x, np.ndarray)}
    options = [name for name in dir(model.opt) if name not in left_out and name[0] != "_"]
    values = {f"opt.{name}": getattr(model.opt, name) for name in options}
    return arrays | {
        name: np.asarray(x).tobytes()
        for name, x in values.items()
        if isinstance(x, int | float | np.ndarray)
    }


def capacity(name: str) -> int:
    """Bytes to keep for the Python state of one environment of this name.

    Twice what a newly reset one with seed 0 takes, as numbers take more or fewer digits; or what
    it takes some steps later, where that is more than this. Measured on an environment of its own,
    so that a run and its continuation get the same.
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
                "of seeds, as NumPy arrays (JAX narrows 64-bit numbers)"
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
    if isinstance(model, mujoco.MjModel) and isinstance(data, mujoco.MjData):
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


def _gather(source: Any, fields: tuple[str, ...]) -> np.ndarray:
    return np.concatenate([np.ravel(getattr(source, field)) for field in fields], dtype=np.float64)


def _scatter(target: Any, fields: tuple[str, ...], values: np.ndarray) -> np.ndarray:
    """Sets the fields; returns the values that are left."""
    for field in fields:
        now = getattr(target, field)
        own, values = np.split(values, [np.size(now)])
        if isinstance(now, np.ndarray):
            now[...] = own.reshape(now.shape)
        else:
            setattr(target, field, float(own[0]))
    return values


def _set_model(model: Any, values: np.ndarray) -> None:
    left = _scatter(model, MODEL_FIELDS, values)
    if left.size:  # there are none in checkpoints of earlier versions
        _scatter(model.opt, OPTIONS, _scatter(model, RANDOMIZED_FIELDS, left))


def _length(source: Any, fields: tuple[str, ...]) -> int:
    return sum(np.size(getattr(source, field)) for field in fields)


def _name(env: gymnasium.Env) -> str:
    return env.get_wrapper_attr("name")
