"""What MuJoCo continues from bit by bit.

Its own integration state is what a simulator needs. Around it lie model fields that tasks change at
resets (targets, terrain), and quantities that some tasks read before the next simulation step (body
positions).
"""

import importlib
from typing import Any

import numpy as np

mujoco: Any = importlib.import_module("mujoco")  # compiled, without type information

_MODEL_FIELDS = (
    # What the suite's tasks change from episode to episode or draw when they are built.
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
    # What users vary from episode to episode (domain randomization).
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
_OPTIONS = ("density", "gravity", "magnetic", "timestep", "viscosity", "wind")
# Derived from the state, but as of an earlier point in time: Gymnasium's tasks read positions that
# belong to the last simulation step but one (Ant's xpos) before they step again.
_DERIVED_FIELDS = (
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
_INTEGRATION = int(mujoco.mjtState.mjSTATE_INTEGRATION)


def capture(model: Any, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """The integration state with the derived fields, and what may vary of the model; one axis each.

    Args:
        model: an `MjModel`.
        data: its `MjData`.
    """
    integration = np.empty(mujoco.mj_stateSize(model, _INTEGRATION))
    mujoco.mj_getState(model, data, integration, _INTEGRATION)
    of_model = [_gather(model, _MODEL_FIELDS), _gather(model.opt, _OPTIONS)]
    return np.concatenate([integration, _gather(data, _DERIVED_FIELDS)]), np.concatenate(of_model)


def restore(model: Any, data: Any, values: np.ndarray, of_model: np.ndarray) -> None:
    """Puts model and data into the state that `capture` returned."""
    _scatter(model.opt, _OPTIONS, _scatter(model, _MODEL_FIELDS, of_model))
    size = mujoco.mj_stateSize(model, _INTEGRATION)
    mujoco.mj_setState(model, data, values[:size], _INTEGRATION)
    # dm_control steps with what depends on positions and velocities already computed.
    mujoco.mj_step1(model, data)
    _scatter(data, _DERIVED_FIELDS, values[size:])


def sizes(model: Any, data: Any) -> tuple[int, int]:
    """The lengths of what `capture` returns."""
    integration = mujoco.mj_stateSize(model, _INTEGRATION)
    of_model = _length(model, _MODEL_FIELDS) + _length(model.opt, _OPTIONS)
    return integration + _length(data, _DERIVED_FIELDS), of_model


def unsaved(model: Any) -> dict[str, bytes]:
    """What `capture` does not save of a model, as bits by name.

    Without cameras and lights, which move along with other fields and concern pictures alone.
    """
    left_out = {*_MODEL_FIELDS, *_OPTIONS}
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


def _length(source: Any, fields: tuple[str, ...]) -> int:
    return sum(np.size(getattr(source, field)) for field in fields)
