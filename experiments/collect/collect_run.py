"""An online run that keeps the policy of every evaluation."""

import pathlib
import zipfile
from typing import Any

import jax
import numpy as np

from experiments import files
from experiments.training.online_run import OnlineRun
from qusac_jax import qusac


class CollectRun(OnlineRun):
    """One seed. `policies/STEP.npz` in its directory has the actor at each evaluation."""

    def _evaluate(self, metrics: dict[str, jax.Array]) -> None:
        super()._evaluate(metrics)
        actor = jax.tree.map(lambda x: np.asarray(x)[0], self._state.actor)
        save_arrays(self._actor_path(self.step), actor)

    def evaluations(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps and mean returns of all evaluations so far, `[n]` each."""
        path = self._directory.path / "metrics.csv"
        columns = files.read_columns(path, ("step", "eval_return"))
        return columns["step"].astype(int), columns["eval_return"]

    def actor(self, step: int) -> Any:
        """The actor's weights at an evaluation.

        Raises:
            ValueError: if its file is missing or damaged.
        """
        like = jax.tree.map(lambda x: x[0], self._state.actor)
        return load_arrays(self._actor_path(step), like)

    def transitions(self, num_steps: int) -> qusac.Transition:
        """The first transitions that the environment gave, `[num_steps, ...]` in NumPy.

        D must have room for all steps, or it has written over them.
        """
        return jax.tree.map(lambda x: np.asarray(x[0, :num_steps]), self._state.replay.data)

    def _actor_path(self, step: int) -> pathlib.Path:
        return self._directory.path / "policies" / f"{step}.npz"


def save_arrays(path: pathlib.Path, tree: Any) -> None:
    """Writes a pytree of arrays, whole or not at all; npz files have a checksum per array."""
    named: dict[str, Any] = {_name(key): x for key, x in jax.tree.flatten_with_path(tree)[0]}
    path.parent.mkdir(exist_ok=True)
    with files.replacing(path, "wb") as file:
        np.savez(file, **named)


def load_arrays(path: pathlib.Path, like: Any) -> Any:
    """Reads what `save_arrays` wrote.

    Args:
        path: of the file.
        like: a pytree of the same structure and shapes.

    Raises:
        ValueError: if the file is missing, damaged or of another structure.
    """
    keyed, structure = jax.tree.flatten_with_path(like)
    try:
        with np.load(path, allow_pickle=False) as file:
            leaves = [file[_name(key)] for key, _ in keyed]
        shapes = [leaf.shape for leaf in leaves]
        if shapes != [x.shape for _, x in keyed]:
            raise ValueError(f"it has the shapes {shapes}")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); put it back, or train again in another workdir"
        ) from error
    return jax.tree.unflatten(structure, leaves)


def _name(key: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(key, simple=True, separator=".")
