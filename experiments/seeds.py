"""Seeds as a batch axis: functions written for one run, mapped over R and spread over devices.

All devices have equally many rows. Where R seeds do not divide evenly, the last one is repeated to
fill up: agents on the devices then have more than R rows, but everything that comes to the host
or goes into a file has R.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qusac_jax import qusac
from qusac_jax._keys import from_data, is_key, to_data
from qusac_jax.qusac.dynamics import Dynamics

_AXIS = "seeds"
_ON_DEVICES = (qusac.TrainState, Dynamics)  # results that stay there


def keys(seeds: Sequence[int], count: int) -> jax.Array:
    """`[R, count]` keys that depend on each seed only, so that a seed alone gives the same run."""
    split = lambda seed: jax.random.split(jax.random.key(seed), count)
    return jax.vmap(split)(jnp.asarray(seeds))


def later(seed: int, step: int) -> int:
    """The seed of what begins at a step of a run that `seed` began."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where the rows of the seeds are."""

    mesh: jax.sharding.Mesh  # of the devices that are used, along one axis
    num_seeds: int  # R
    num_rows: int  # R and what fills up the last device

    @property
    def sharding(self) -> jax.sharding.NamedSharding:
        """Of the leading axis."""
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(_AXIS))

    @property
    def rows(self) -> np.ndarray:
        """`[num_rows]` the seed's index of each row."""
        return np.minimum(np.arange(self.num_rows), self.num_seeds - 1)

    @property
    def has_extra(self) -> bool:
        """Whether there are more rows than seeds."""
        return self.num_rows > self.num_seeds


def per_device(num_seeds: int, num_devices: int) -> int:
    """Rows on each device that is used."""
    return -(-num_seeds // num_devices)


def num_used(num_seeds: int, num_devices: int) -> int:
    """The smallest number of devices that is as fast as all of them."""
    return -(-num_seeds // per_device(num_seeds, num_devices))


def placement(num_seeds: int, devices: Sequence[Any]) -> Placement | None:
    """The leading axis spread over the devices that are used; None for one."""
    used = num_used(num_seeds, len(devices))
    if used == 1:
        return None
    mesh = jax.sharding.Mesh(np.asarray(devices[:used]), (_AXIS,))
    return Placement(mesh, num_seeds, used * per_device(num_seeds, used))


def mapped(
    function: Callable[..., Any],
    *,
    donate: tuple[int, ...] = (),
    placement: Placement | None = None,
    **static: Any,
) -> Any:
    """The function over a leading axis R of its arguments, compiled.

    Args:
        function: written for one seed.
        donate: positions of the arguments whose memory the result may take.
        placement: from `placement`. Arguments may then be without the rows that fill up; results
            are without them, except agents and their dynamics.
        static: keyword arguments that are the same for all seeds.
    """
    # The same placement for inputs and outputs: what a function returns then fits what the next
    # call expects, and nothing is compiled twice.
    placed: dict[str, Any] = {}
    if placement is not None:
        placed = {"in_shardings": placement.sharding, "out_shardings": placement.sharding}
    batched = jax.vmap(functools.partial(function, **static))
    compiled = jax.jit(batched, donate_argnums=donate, **placed)
    if placement is None or not (placement.has_extra or jax.process_count() > 1):
        return compiled

    def call(*arguments: Any) -> Any:
        arguments = sent(filled(arguments, placement), placement.sharding)
        return for_host(compiled(*arguments), placement)

    return call


def sent(tree: Any, sharding: jax.sharding.Sharding | None) -> Any:
    """Arrays for a compiled function: where several processes run, JAX sends none by itself."""
    if sharding is None or jax.process_count() == 1:
        return tree
    send = lambda x: x if isinstance(x, jax.Array) else jax.device_put(x, sharding)
    return jax.tree.map(send, tree)


def filled(tree: Any, placement: Placement | None, per_seed: int = 1) -> Any:
    """Arrays with the rows that fill up; those that have them already stay as they are.

    Args:
        tree: arrays `[R * per_seed, ...]`.
        placement: from `placement`.
        per_seed: rows of each seed, such as its environments.
    """
    if placement is None or not placement.has_extra:
        return tree
    rows = (placement.rows[:, None] * per_seed + np.arange(per_seed)).ravel()
    return jax.tree.map(lambda x: x if len(x) == len(rows) else x[rows], tree)


def for_host(tree: Any, placement: Placement | None) -> Any:
    """What a `mapped` function returned without the rows that fill up, fetched when it is read."""
    if placement is None or not placement.has_extra:
        return tree
    stays = lambda x: isinstance(x, _ON_DEVICES)
    crop = lambda x: x if stays(x) else _Rows(x, placement.num_seeds)
    return jax.tree.map(crop, tree, is_leaf=stays)


def cropped(tree: Any, placement: Placement | None, per_seed: int = 1) -> Any:
    """Arrays without the rows that `filled` adds; as they are where there are no such rows.

    Otherwise arrays come to the host; random keys become uncommitted.

    Args:
        tree: arrays `[num_rows * per_seed, ...]`.
        placement: from `placement`.
        per_seed: rows of each seed.
    """
    if placement is None or not placement.has_extra:
        return tree
    count = placement.num_seeds * per_seed
    return jax.tree.map(
        lambda x: _first_keys(x, count) if is_key(x) else np.asarray(x)[:count], tree
    )


def like(tree: Any, placement: Placement | None) -> Any:
    """What `cropped` returns, with any content: for a checkpoint to be read into."""
    if placement is None or not placement.has_extra:
        return tree
    count = placement.num_seeds
    empty = lambda x: (
        _first_keys(x, count) if is_key(x) else np.empty((count, *x.shape[1:]), x.dtype)
    )
    return jax.tree.map(empty, tree)


def continued(tree: Any, placement: Placement | None) -> Any:
    """What was read into what `like` returned, where `mapped` functions expect it."""
    return placed(tree, placement) if placement is not None and placement.has_extra else tree


def replicated(tree: Any, num_seeds: int, placement: Placement | None) -> Any:
    """The arrays of a tree once for each seed, `[R, ...]`, where `mapped` functions expect them."""
    count = num_seeds if placement is None else placement.num_rows
    return placed(
        jax.tree.map(lambda x: np.broadcast_to(x, (count, *np.shape(x))), tree), placement
    )


def placed(tree: Any, placement: Placement | None) -> Any:
    """Arrays `[R, ...]` where `mapped` functions expect them."""
    on_host = jax.tree.map(lambda x: x if is_key(x) else np.asarray(x), tree)
    if placement is None:
        return jax.tree.map(jnp.asarray, on_host)
    return jax.device_put(filled(on_host, placement), placement.sharding)


class _Rows:
    """The first rows of an array on devices, for NumPy."""

    def __init__(self, array: jax.Array, count: int):
        """Nothing is fetched yet."""
        self._array, self._count = array, count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Fetches them."""
        del copy  # nobody else has what was fetched
        return np.asarray(self._array)[: self._count].astype(dtype or self._array.dtype)

    def block_until_ready(self) -> "_Rows":
        """Waits until they are computed."""
        self._array.block_until_ready()
        return self


def _first_keys(keys: jax.Array, count: int) -> jax.Array:
    """The first keys, bound to no device."""
    return from_data(keys, jnp.asarray(np.asarray(to_data(keys))[:count]))
