"""The policies that a collect run keeps, one for each evaluation: `policies/STEP.npz`."""

import pathlib
import zipfile
from typing import Any

import jax
import numpy as np

from experiments import files


def steps(run: pathlib.Path) -> list[int]:
    """At which steps the run in this directory has kept its policy, in any order."""
    there = (run / "policies").glob("*.npz")
    return [int(path.stem) for path in there if path.stem.isdecimal()]


def save(run: pathlib.Path, step: int, actor: Any) -> None:
    """Writes a pytree of arrays, whole or not at all; npz files have a checksum per array."""
    named: dict[str, Any] = {_name(key): x for key, x in jax.tree.flatten_with_path(actor)[0]}
    path = _path(run, step)
    path.parent.mkdir(exist_ok=True)
    with files.replacing(path, "wb") as file:
        np.savez(file, **named)


def load(run: pathlib.Path, step: int, like: Any) -> Any:
    """Reads what `save` wrote.

    Args:
        run: its directory.
        step: of the policy.
        like: a pytree of the same structure and shapes.

    Raises:
        ValueError: if the file is missing, damaged or of another structure.
    """
    path = _path(run, step)
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


def _path(run: pathlib.Path, step: int) -> pathlib.Path:
    return run / "policies" / f"{step}.npz"


def _name(key: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(key, simple=True, separator=".")
