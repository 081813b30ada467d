"""A trained policy as a file, and as a function of observations."""

import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from qusac_jax._checks import is_concrete
from qusac_jax.qusac import networks


class Policy(NamedTuple):
    """`policy(observation, key=None) -> action`, see `load_policy`."""

    observation_size: int  # O
    action_size: int  # A
    function: Callable[..., jax.Array]

    def __call__(self, observation: Any, key: jax.Array | None = None) -> jax.Array:
        """The mean action `[..., A]` without a key, a draw with one."""
        return self.function(observation, key)


def save_policy(
    path: str | pathlib.Path,
    actor: networks.Params,
    *,
    hidden: tuple[int, ...],
    action_size: int,
    metadata: dict[str, Any],
) -> None:
    """Writes the actors of R seeds, replacing what is there.

    Args:
        path: directory to write.
        actor: parameters, leaves `[R, ...]`.
        hidden: layer sizes of the actor.
        action_size: A.
        metadata: JSON-compatible facts about the run, such as its environment.
    """
    path = pathlib.Path(path).absolute()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "actor", actor, force=True)
    description = {"hidden": list(hidden), "action_size": action_size, **metadata}
    (path / "policy.json").write_text(json.dumps(description, indent=2) + "\n")


def load_policy(path: str | pathlib.Path, *, seed_index: int = 0) -> Policy:
    """Loads the policy of a run.

    Args:
        path: a run directory, or the `policy` directory in it.
        seed_index: which seed of a run with several, in [0, R).

    Returns:
        `policy(observation, key=None) -> action`, jitted: `[..., O] -> [..., A]` in [-1, 1], the
        mean action without a key, a draw with one.

    Raises:
        ValueError: if there is no complete policy at `path`, or no such seed in it; the policy
            raises it for observations of another size or, outside `jit`, with NaN or infinity.
    """
    path = pathlib.Path(path).absolute()
    if (path / "policy").is_dir():
        path = path / "policy"
    try:
        description = json.loads((path / "policy.json").read_text())
        hidden, action_size = tuple(description["hidden"]), int(description["action_size"])
        with ocp.StandardCheckpointer() as checkpointer:
            # Without a target Orbax asks for the devices of the machine that saved; read to NumPy.
            structure = checkpointer.metadata(path / "actor").item_metadata
            target = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), dict(structure))
            stacked = checkpointer.restore(path / "actor", target)
    except Exception as error:  # missing or damaged files raise many types in Orbax
        raise ValueError(
            f"path {str(path)!r} holds no complete policy; pass the --workdir of a finished run"
        ) from error
    num_seeds = jax.tree.leaves(stacked)[0].shape[0]
    if not 0 <= seed_index < num_seeds:
        raise ValueError(f"seed_index must lie in [0, {num_seeds}), got {seed_index}")
    params = jax.tree.map(lambda x: jnp.asarray(x[seed_index]), stacked)
    actor = networks.Actor(hidden, action_size)

    @jax.jit
    def act(observation: jax.Array, key: jax.Array | None) -> jax.Array:
        if key is None:
            return networks.mean_action(actor, params, observation)
        return networks.sample_action(actor, params, observation, key)[0]

    observation_size = params["params"]["MLP_0"]["Dense_0"]["kernel"].shape[0]

    def policy(observation: jax.Array, key: jax.Array | None = None) -> jax.Array:
        shape = np.shape(observation)
        if not shape or shape[-1] != observation_size:
            raise ValueError(
                f"observation must have shape [..., {observation_size}], got {shape}; flatten it "
                "as in training"
            )
        if is_concrete(observation) and not np.isfinite(np.asarray(observation)).all():
            raise ValueError("observation must be finite, got NaN or infinity in it")
        return act(jnp.asarray(observation), key)

    return Policy(observation_size, action_size, policy)
