"""Files of a trained policy: the actors' weights, what is known of them, and checksums.

Axes: R seeds, A action size.
"""

import json
import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from qusac_jax import _checksums
from qusac_jax._messages import first_line
from qusac_jax._orbax_reports import without_reports
from qusac_jax._paths import as_path
from qusac_jax.qusac import networks

_DESCRIPTION = "policy.json"
BOUNDS = ("action_low", "action_high")
_REMEDY = (
    "run the training's command again with its --workdir, which only writes the policy anew where "
    "the run is finished"
)


def save_policy(
    path: str | pathlib.Path,
    actor: networks.Params,
    *,
    hidden: tuple[int, ...],
    action_low: Sequence[float],
    action_high: Sequence[float],
    metadata: dict[str, Any],
) -> None:
    """Writes the actors of R seeds with checksums, replacing what is there.

    Args:
        path: directory to write.
        actor: parameters, leaves `[R, ...]`.
        hidden: layer sizes of the actor.
        action_low: `[A]`, the action of the environment that -1 stands for.
        action_high: `[A]`, the one that 1 stands for.
        metadata: JSON-compatible facts about the run; `Policy.environment` needs `env` and
            `action_cost` among them.

    Raises:
        ValueError: if it cannot be written, or could not be loaded: if a bound is not finite or a
            lower one not below the upper, if the actor is not of these sizes, or if the metadata
            are nothing for JSON. What was there before stays.
    """
    path = as_path("path", path)
    partial, previous = map(path.with_name, (f"{path.name}.partial", _previous(path.name)))
    if previous.exists() and not path.exists():  # killed between the two renames below
        previous.rename(path)
    for left_over in (partial, previous):
        shutil.rmtree(left_over, ignore_errors=True)
    description = {
        **metadata,
        "hidden": list(map(int, hidden)),  # NumPy's integers are none to JSON
        "action_size": len(action_low),
        "action_low": list(map(float, action_low)),
        "action_high": list(map(float, action_high)),
    }
    if not _are_bounds(description, len(action_low)):
        raise ValueError(
            "action_low and action_high must be as many finite numbers, each lower one below the "
            f"upper, got {description['action_low']} and {description['action_high']}"
        )
    if not _are_weights(actor, hidden, len(action_low)):
        raise ValueError(
            f"actor must be of {len(action_low)} actions and have the layers {list(hidden)}, with "
            "the seeds as leading axis"
        )
    try:
        text = json.dumps(description, indent=2) + "\n"
    except TypeError as error:
        raise ValueError(f"metadata must be something for JSON: {error}") from error
    try:
        _write(partial, actor, text)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"could not write the policy to {str(path)!r}: {first_line(error)}; check the folder's "
            "disk space and permissions, and run the training's command again with its --workdir"
        ) from error
    if path.exists():
        path.rename(previous)
    partial.rename(path)
    shutil.rmtree(previous, ignore_errors=True)


def _previous(name: str) -> str:
    """The policy that is being replaced is called so until the new one is in its place."""
    return f"{name}.previous"


def _write(path: pathlib.Path, actor: networks.Params, description: str) -> None:
    # Where several processes run, this one writes by itself.
    alone = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(), active_processes={jax.process_index()}
    )
    # Not the asynchronous one, whose threads report a full disk with tracebacks of their own.
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
    with (
        without_reports(),
        ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer,
    ):
        checkpointer.save(path / "actor", args=ocp.args.StandardSave(actor))  # type: ignore[call-arg]
    (path / _DESCRIPTION).write_text(description)
    _checksums.write(path)


def load_actor(path: str | pathlib.Path) -> tuple[networks.Params, dict[str, Any]]:
    """Reads what `save_policy` wrote.

    Args:
        path: a run directory, or the `policy` directory in it.

    Returns:
        The actors' parameters, NumPy leaves `[R, ...]`, and the facts beside them: `hidden`,
        `action_size`, the bounds of the actions and the metadata.

    Raises:
        ValueError: if there is no complete policy at `path`, or if a file of it has changed since
            it was written.
    """
    path = as_path("path", path)
    # The previous one is there alone if its writer was killed between the two renames.
    near = (path / "policy", path / _previous("policy"), path, path.with_name(_previous(path.name)))
    try:
        path = next((each for each in near if each.is_dir()), path)
    except OSError as error:  # a folder that may not be entered, a name that is too long
        raise ValueError(
            f"path {str(path)!r} cannot be read ({error.strerror}); pass the --workdir of a run"
        ) from error
    _check_files(path)
    try:
        description = json.loads((path / _DESCRIPTION).read_text())
        hidden, action_size = tuple(description["hidden"]), int(description["action_size"])
        with ocp.StandardCheckpointer() as checkpointer:
            # Without a target Orbax asks for the devices of the machine that saved; read to NumPy.
            structure = checkpointer.metadata(path / "actor").item_metadata
            target = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), dict(structure))
            actor = checkpointer.restore(path / "actor", target)
    except Exception as error:  # missing or damaged files raise many types in Orbax
        raise ValueError(
            f"path {str(path)!r} holds no complete policy; pass the --workdir of a finished run"
        ) from error
    _check_weights(path, actor, hidden, action_size)
    return actor, _with_bounds(path, description, action_size)


def _check_files(path: pathlib.Path) -> None:
    """Raises `ValueError` if a file changed; policies without bounds have no checksums either."""
    try:
        changed = _checksums.changed(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"policy {str(path)!r} is damaged: {error}; {_REMEDY}") from error
    if changed:
        raise ValueError(
            f"policy {str(path)!r} is damaged: {changed} changed or is missing; {_REMEDY}"
        )


def _check_weights(
    path: pathlib.Path, stacked: Any, hidden: tuple[int, ...], action_size: int
) -> None:
    """Raises `ValueError` if policy.json tells of another network than that of the weights."""
    if not _are_weights(stacked, hidden, action_size):
        raise ValueError(
            f"policy {str(path)!r} has a policy.json with hidden {list(hidden)} and action_size "
            f"{action_size}, which the weights beside it do not have; {_REMEDY}"
        )


def _are_weights(stacked: Any, hidden: Sequence[int], action_size: int) -> bool:
    """Whether they are those of actors of these sizes, `[R, ...]`."""
    try:
        size = stacked["params"]["MLP_0"]["Dense_0"]["kernel"].shape[1]
        actor = networks.actor_of(stacked, tuple(hidden), action_size)
        # Nothing is compiled for it, which would spoil a trace of a run's last steps.
        wanted = jax.eval_shape(lambda: actor.init(jax.random.key(0), jnp.zeros(size)))
        found = jax.tree.map(lambda x: x.shape[1:], stacked)
        return found == jax.tree.map(lambda x: x.shape, wanted)
    except Exception:  # flax raises many types for sizes that are none
        return False


def _with_bounds(
    path: pathlib.Path, description: dict[str, Any], action_size: int
) -> dict[str, Any]:
    """The description; versions that did not save bounds are understood where these are known."""
    env = description.get("env")
    if not any(name in description for name in BOUNDS):
        from qusac_jax.environments.names import ALIASES  # slow to import

        if env not in ALIASES:  # those of the paper have actions in [-1, 1]
            raise ValueError(
                f"policy {str(path)!r} does not say in which bounds the actions of {env!r} lie, as "
                f"it is of an earlier version; {_REMEDY}"
            )
        ones = [1.0] * action_size
        return {**description, "action_low": [-x for x in ones], "action_high": ones}
    if not (_checksums.is_there(path) and _are_bounds(description, action_size)):
        raise ValueError(
            f"policy {str(path)!r} is not complete: its checksums or the {action_size} bounds of "
            f"its actions are missing; {_REMEDY}"
        )
    return description


def _are_bounds(description: dict[str, Any], action_size: int) -> bool:
    try:
        low, high = (np.asarray(description[name], np.float64) for name in BOUNDS)
    except (KeyError, TypeError, ValueError):
        return False
    is_finite = np.isfinite(low).all() and np.isfinite(high).all()
    return low.shape == high.shape == (action_size,) and bool(is_finite and (low < high).all())
