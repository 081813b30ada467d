"""Processes that train one run together, usually one on each host; `distributed` finds them.

Each has its share of the seeds, from acting to learning, and computes as if it were alone: what a
seed does depends on nothing else. They meet where files are written, at evaluations and
checkpoints, and every few steps to agree on whether to go on. The first process writes the files;
checkpoints are written by all of them, and are those that one process alone would write.

Axes: R seeds of all processes, P processes.
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from experiments import seeds
from experiments.distributed import check_divisible
from qusac_jax import _keys

EVERY = 100  # steps after which processes agree on whether to go on
_INLINE = 256  # bytes of a message that need no second call, its head among them
_HEAD = 9  # bytes before its text: whether that is an error, and its length
_LOST = (
    "another process of this run has ended, so this one ends too; start all of them again with the "
    "same commands, and the run continues from its last checkpoint"
)


class Processes:
    """The processes of a run; only this one, unless `distributed.connect` found others.

    `together`, `agree`, `gather`, `joined` and `joined_lists` exchange messages; `for_checkpoint`
    and `like` make arrays of all processes: all must call these methods, in the same order.
    """

    def __init__(self) -> None:
        """Of this moment, after `distributed.connect`."""
        self.count, self.index = jax.process_count(), jax.process_index()

    @property
    def is_first(self) -> bool:
        """Whether this one writes the files."""
        return self.index == 0

    def share(self, items: Sequence[Any]) -> Any:
        """This process's part of what there is for all seeds, such as rows of an array.

        Raises:
            ValueError: if they cannot be divided evenly.
        """
        check_divisible(len(items), self.count)
        size = len(items) // self.count
        return items[self.index * size : (self.index + 1) * size]

    def devices(self, num_seeds: int, devices: Sequence[Any]) -> list[Any]:
        """Those of this process's devices that divide its seeds evenly, as many as can.

        Args:
            num_seeds: of this process.
            devices: of this process.
        """
        if self.count == 1:
            return list(devices)
        most = min(len(devices), num_seeds)
        used = next(n for n in range(most, 0, -1) if num_seeds % n == 0)
        return list(devices[:used])

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Within it, an error on one process ends the others, too: with its message.

        All leave it together: one that is done waits for what the first still has to write.
        """
        try:
            yield
        except _OthersError:
            raise
        except BaseException as error:
            if self.count > 1:
                self._meet(b"", error=f"{error}" or type(error).__name__)
            raise
        if self.count > 1:
            self._meet(b"")

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Within it, only the first process prints to stdout."""
        with contextlib.ExitStack() as stack:
            if not self.is_first:
                nowhere = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(contextlib.redirect_stdout(nowhere))
            yield

    def agree(self, signal_number: int | None) -> int | None:
        """The number of a signal that came to one of the processes."""
        return max((number or 0) for number in self.gather(signal_number)) or None

    def gather(self, value: Any) -> list[Any]:
        """What each process has, in their order; JSON-compatible."""
        if self.count == 1:
            return [value]
        return [json.loads(text) for text in self._meet(json.dumps(value).encode())]

    def joined(self, tree: Any) -> Any:
        """Arrays `[R / P, ...]` of each process one after another, `[R, ...]` of NumPy."""
        if self.count == 1:
            return tree
        leaves, structure = jax.tree.flatten(tree)
        content = io.BytesIO()
        np.savez(content, *map(np.asarray, leaves))
        parts = [np.load(io.BytesIO(part)) for part in self._meet(content.getvalue())]
        rows = [np.concatenate([part[f"arr_{i}"] for part in parts]) for i in range(len(leaves))]
        return jax.tree.unflatten(structure, rows)

    def joined_lists(self, values: Any) -> Any:
        """The same of lists in nested dictionaries; other values are those of the first process."""
        return _joined_lists(self.gather(values))

    def for_checkpoint(self, tree: Any, placement: seeds.Placement | None) -> Any:
        """What all processes together have on their devices, as arrays of all of them.

        Args:
            tree: arrays `[R / P, ...]`, random keys included.
            placement: of this process.
        """
        tree = seeds.cropped(tree, placement)
        return jax.tree.map(self._spread, tree) if self.count > 1 else tree

    def like(self, tree: Any, placement: seeds.Placement | None) -> Any:
        """What `for_checkpoint` returns, with any content: for a checkpoint to be read into."""
        if self.count > 1:
            return self.for_checkpoint(tree, placement)
        return seeds.like(tree, placement)

    def own(self, restored: Any, tree: Any, placement: seeds.Placement | None) -> Any:
        """This process's part of what was read into what `like` returned.

        Args:
            restored: that.
            tree: what `like` was given.
            placement: of this process.
        """
        if self.count > 1:
            return jax.tree.map(_own, restored, tree)
        return seeds.continued(restored, placement)

    def _spread(self, x: jax.Array) -> jax.Array:
        """An array of all processes from one of each, which stays where it is."""
        data = _keys.to_data(x)
        own = _shards(data)
        devices = [
            [device for device in jax.devices() if device.process_index == process][: len(own)]
            for process in range(self.count)
        ]
        mesh = jax.sharding.Mesh(np.asarray(devices).ravel(), ("seeds",))
        placed = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seeds"))
        shape = (self.count * data.shape[0], *data.shape[1:])
        return jax.make_array_from_single_device_arrays(shape, placed, own)

    def _meet(self, content: bytes, error: str = "") -> list[bytes]:
        """Exchanges messages.

        Raises:
            _OthersError: if another process has an error.
        """
        body = np.frombuffer(error.encode() or content, np.uint8)
        first = np.zeros(_INLINE, np.uint8)
        first[:_HEAD] = [bool(error), *len(body).to_bytes(8)]
        first[_HEAD : _HEAD + len(body)] = body[: _INLINE - _HEAD]
        firsts = _exchange(first, error)
        sizes = [int.from_bytes(row[1:_HEAD].tobytes()) for row in firsts]
        rows = firsts[:, _HEAD:]
        if max(sizes) > _INLINE - _HEAD:
            # Powers of two: what exchanges them is compiled for each size.
            rest = np.zeros(1 << max(sizes).bit_length(), np.uint8)
            rest[: len(body)] = body
            rows = _exchange(rest, error)
        messages = [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]
        failed = [i for i in range(self.count) if firsts[i, 0] and i != self.index]
        if failed and not error:
            raise _OthersError(f"process {failed[0]} ended: {messages[failed[0]].decode()}")
        return messages


class _OthersError(ValueError):
    """Another process ends, and has said why."""


def _exchange(row: np.ndarray, own_error: str) -> np.ndarray:
    """`[P, ...]` the rows of all processes; ends this one if another is not there any more."""
    try:
        return np.asarray(multihost_utils.process_allgather(row))
    except Exception as error:  # what it is depends on the device
        if own_error:
            print(f"error: {own_error}", file=sys.stderr)
        print(f"error: {_LOST} ({str(error)[:200]})", file=sys.stderr, flush=True)
        # An ordinary end would wait for the others.
        os._exit(2)


def _joined_lists(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, dict):
        return {name: _joined_lists([part[name] for part in parts]) for name in first}
    return sum(parts[1:], first) if isinstance(first, list) else first


def _own(restored: jax.Array, local: jax.Array) -> jax.Array:
    shards = _shards(restored)
    like = _keys.to_data(local)
    if len(shards) == 1:
        data = shards[0]
    else:
        data = jax.make_array_from_single_device_arrays(like.shape, like.sharding, shards)
    return _keys.from_data(local, data)


def _shards(x: jax.Array) -> list[jax.Array]:
    """This process's parts of an array, in the order of its rows."""
    return [s.data for s in sorted(x.addressable_shards, key=lambda s: s.index[0].start or 0)]


def stopped_together(
    processes: Processes, stopped: Callable[[], int | None]
) -> Callable[[], int | None]:
    """A function that says on all processes alike which signal came to one of them."""
    if processes.count == 1:
        return stopped
    return lambda: processes.agree(stopped())
