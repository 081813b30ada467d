"""Saving and exactly restoring the state of a run, through Orbax.

A checkpoint is written under a temporary name and renamed when complete, so a run that dies while
saving leaves the previous checkpoint as it was.
"""

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp

from qusac_jax import _checksums, _keys
from qusac_jax._messages import first_line
from qusac_jax._orbax_reports import without_reports
from qusac_jax._paths import as_path

PyTree = Any

LEFT_OUT = ocp.PLACEHOLDER  # in place of an array of a checkpoint that is not to be read
_REMEDY = "use another checkpoint (--resume=latest_good), or another workdir"
_REMEDY_OF_LAST = "no other one can be read: start in another workdir"
_ATTEMPTS = 5  # to list the checkpoints of a run that another process trains


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, or belongs to something else."""


class Restored(NamedTuple):
    """What a checkpoint held."""

    step: int
    device: PyTree  # jax arrays
    host: PyTree  # NumPy arrays in the dtypes that were saved, 64-bit ones included
    metadata: dict[str, Any]  # whatever JSON can hold


class Checkpointer:
    """Numbered checkpoints in one directory, the oldest deleted first."""

    def __init__(
        self, directory: str | pathlib.Path, *, max_to_keep: int = 2, remedy: str = _REMEDY
    ):
        """Opens the directory; it is created at the first save.

        Args:
            directory: of this run's checkpoints.
            max_to_keep: how many complete checkpoints stay.
            remedy: what to do about a damaged one, for the message.
        """
        self._remedy = remedy
        self._directory = as_path("directory", directory)
        self._max_to_keep = max_to_keep
        self._manager: ocp.CheckpointManager | None = None
        self._has_cleaned = False

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        if not self._directory.is_dir():
            return []
        for _ in range(_ATTEMPTS):  # the run may go on, and delete one while it is looked at
            with contextlib.suppress(FileNotFoundError):
                return sorted(self._open().all_steps())
        return sorted(self._open().all_steps())

    def save(self, step: int, device: PyTree, host: PyTree, metadata: dict[str, Any]) -> None:
        """Writes a checkpoint and waits until it is complete.

        Saving a step that is already there does nothing.

        Args:
            step: number of the checkpoint.
            device: pytree of jax arrays, typed random keys included.
            host: pytree of NumPy arrays.
            metadata: JSON-compatible; else `TypeError`.

        Raises:
            CheckpointError: if it cannot be written; earlier ones are untouched.
        """
        try:
            if step in self.steps():
                return
            self._remove_leftovers()
            manager = self._open()
            device_data = jax.tree.map(_keys.to_data, device)
            host_data = jax.tree.map(_without_empty, host)
            with without_reports():
                saved = manager.save(
                    step,
                    args=ocp.args.Composite(
                        device=ocp.args.StandardSave(_not_empty(device_data)),  # type: ignore[call-arg]
                        host=ocp.args.StandardSave(_not_empty(host_data)),  # type: ignore[call-arg]
                        metadata=ocp.args.JsonSave(metadata),  # type: ignore[call-arg]
                    ),
                )
                manager.wait_until_finished()
            if not saved:  # Orbax keeps to the order of steps
                raise ValueError(f"there are later checkpoints, {self.steps()}")
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"could not write checkpoint {step} to {self._directory}: {_cause(error)}; "
                "free disk space or choose another workdir. Earlier checkpoints are unharmed"
            ) from error
        if jax.process_index() > 0:
            return
        try:
            _checksums.write(self._directory / str(step))
        except OSError as error:
            raise CheckpointError(
                f"could not write the checksums of checkpoint {step} in {self._directory}: "
                f"{_cause(error)}; free disk space. The checkpoint itself is whole"
            ) from error

    def restore(self, device: PyTree, host: PyTree, *, step: int | None = None) -> Restored:
        """Reads a checkpoint.

        Args:
            device: pytree with the structure, shapes and shardings to restore, and the dtypes to
                convert to; NumPy arrays where they are to stay on the host.
            host: the same for the NumPy part; only structure counts, the saved shapes win. Where
                there are no numbers, as many as were saved, the array given is returned.
            step: which one; default the latest.

        Returns:
            What was saved.

        Raises:
            CheckpointError: if there is none, or it is truncated or of another structure. The
                files stay as they are.
        """
        target = jax.tree.map(_restored_like, _not_empty(jax.tree.map(_keys.to_data, device)))
        host_target = _not_empty(jax.tree.map(_without_empty, host))
        parts = {
            "device": ocp.args.StandardRestore(target),  # type: ignore[call-arg]
            "host": ocp.args.StandardRestore(host_target),  # type: ignore[call-arg]
            "metadata": ocp.args.JsonRestore(),  # type: ignore[call-arg]
        }
        read_step, read = self._read(step, lambda step: self._read_parts(step, parts, target))
        restored, read_host = device, host
        if jax.tree.leaves(device):
            restored = jax.tree.map(_keys.from_data, device, read["device"])
        if jax.tree.leaves(host):
            given_or_read = lambda like, x: np.asarray(x if np.size(like) else like)
            read_host = jax.tree.map(given_or_read, host, read["host"])
        return Restored(read_step, restored, read_host, read["metadata"])

    def restore_device(self, device: PyTree, *, step: int | None = None) -> PyTree:
        """Reads of a checkpoint what was on the device, or some arrays of it.

        Args:
            device: as for `restore`, with `LEFT_OUT` in place of arrays that are not to be read.
            step: which one; default the latest.

        Returns:
            The same tree with what was saved, `LEFT_OUT` where that was asked for.

        Raises:
            CheckpointError: as `restore`.
        """
        target = jax.tree.map(_restored_like, jax.tree.map(_keys.to_data, device))
        read = self._read(step, lambda step: self._read_device(step, target))[1]
        return jax.tree.map(_keys.from_data, device, read)

    def metadata(self) -> dict[str, Any]:
        """What was saved as metadata with the latest checkpoint.

        Raises:
            CheckpointError: if there is none, or it is damaged.
        """
        parts = {"metadata": ocp.args.JsonRestore()}  # type: ignore[call-arg]
        return self._read(None, lambda step: self._read_parts(step, parts))[1]["metadata"]

    def _read(self, step: int | None, read: Callable[[int], Any]) -> tuple[int, Any]:
        """The step of a checkpoint, the latest by default, and what is read of it."""
        steps = self.steps()
        if not steps:
            raise CheckpointError(f"there is no complete checkpoint in {self._directory}")
        step = steps[-1] if step is None else step
        if step not in steps:
            raise CheckpointError(
                f"there is no checkpoint {step} in {self._directory}; there are {steps}"
            )
        try:
            return step, read(step)
        except CheckpointError as error:
            since = [later for later in self._open().all_steps(read=True) if later > steps[-1]]
            if since:
                raise CheckpointError(
                    f"checkpoint {step} in {self._directory} could not be read: a run that goes on "
                    f"there keeps its last ones only and has saved {max(since)} since; read again"
                ) from error
            raise

    def _read_parts(self, step: int, parts: dict[str, Any], device: PyTree = None) -> Any:
        """The parts of a checkpoint, what was on the device in the shapes that are asked for."""
        with self._damage_named(step):
            read = self._open().restore(step, args=ocp.args.Composite(**parts))
            if device is not None:
                jax.tree.map(_check_shape, device, read["device"])
        return read

    def _read_device(self, step: int, target: PyTree) -> PyTree:
        """Of a tree with `LEFT_OUT`, which the manager's way of reading does not know."""
        how = ocp.checkpoint_utils.construct_restore_args(target)
        with (
            self._damage_named(step),
            ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader,
        ):
            read = reader.restore(
                self._directory / str(step) / "device",
                args=ocp.args.PyTreeRestore(target, restore_args=how),  # type: ignore[call-arg]
            )
            jax.tree.map(_check_shape, target, read)
        return read

    @contextlib.contextmanager
    def _damage_named(self, step: int) -> Iterator[None]:
        """Within it a checkpoint is read, whose files are compared with their checksums first."""
        directory = self._directory / str(step)
        if damage := _damage(directory):
            raise CheckpointError(
                f"checkpoint {directory} is damaged: {damage}. Nothing was changed; "
                f"{self._remedy_of(step)}"
            )
        try:
            yield
        except Exception as error:  # Orbax and TensorStore raise many types for damaged files.
            raise CheckpointError(
                f"checkpoint {step} in {self._directory} is damaged or belongs to another program: "
                f"{_cause(error)}. Nothing was changed; {self._remedy_of(step)}"
            ) from error

    def _remedy_of(self, step: int) -> str:
        """What to do about a damaged checkpoint: to use another one, if there is one to use."""
        others = (self._directory / str(one) for one in self.steps() if one != step)
        if self._remedy != _REMEDY or any(not _damage(path) for path in others):
            return self._remedy
        return _REMEDY_OF_LAST

    def restore_latest_good(self, device: PyTree, host: PyTree) -> Restored:
        """Reads the latest checkpoint that can be read.

        Raises:
            CheckpointError: if none can, with the reason of the latest.
        """
        first: CheckpointError | None = None
        for step in reversed(self.steps()):
            try:
                return self.restore(device, host, step=step)
            except CheckpointError as error:
                first = first or error
        raise first or CheckpointError(f"there is no complete checkpoint in {self._directory}")

    def _remove_leftovers(self) -> None:
        """Removes what earlier processes that were killed while saving have left, once."""
        if not self._has_cleaned and jax.process_index() == 0:
            for path in self._directory.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(path)
        self._has_cleaned = True

    def delete_after(self, step: int) -> None:
        """Removes checkpoints later than `step`, which a run resumed there will write anew."""
        for later in self.steps():
            if later > step:
                self._open().delete(later)

    def close(self) -> None:
        """Releases Orbax's threads."""
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def _open(self) -> ocp.CheckpointManager:
        if self._manager is None:
            self._manager = ocp.CheckpointManager(
                self._directory,
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=self._max_to_keep, create=True, enable_async_checkpointing=False
                ),
            )
        return self._manager


def _cause(error: BaseException) -> str:
    """What went wrong, in a line; of an error of TensorStore only what the system said."""
    of_system = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(of_system[1])) if of_system else first_line(error)


def _damage(directory: pathlib.Path) -> str:
    """What is wrong with the files of a checkpoint, by their checksums; empty if nothing is.

    One that was killed between Orbax's rename and ours has no checksums, and is complete.
    """
    try:
        wrong = _checksums.changed(directory)
    except (OSError, ValueError) as error:
        return first_line(error)
    return f"{wrong} changed, was truncated or is missing" if wrong else ""


def _check_shape(like: Any, read: Any) -> None:
    """Raises `ValueError` for a shape that was not asked for, which Orbax gives NumPy arrays."""
    if like is not LEFT_OUT and like.shape != read.shape:
        raise ValueError(f"an array has the shape {read.shape}, not {like.shape}")


def _restored_like(x: Any) -> Any:
    if isinstance(x, np.ndarray) or x is LEFT_OUT:
        return x
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def _not_empty(tree: PyTree) -> PyTree:
    """Something in place of a tree without arrays, which Orbax refuses."""
    return tree if jax.tree.leaves(tree) else {"nothing": np.zeros(1)}


def _without_empty(x: Any) -> np.ndarray:
    # Orbax refuses arrays without elements; their shape is all there is, and the caller knows it.
    return np.asarray(x) if np.size(x) else np.zeros(1, np.asarray(x).dtype)
