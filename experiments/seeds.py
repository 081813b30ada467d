"""Seeds as a batch axis: functions written for one run, mapped over R and spread over devices."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def keys(seeds: Sequence[int], count: int) -> jax.Array:
    """`[R, count]` keys that depend on each seed only, so that a seed alone gives the same run."""
    split = lambda seed: jax.random.split(jax.random.key(seed), count)
    return jax.vmap(split)(jnp.asarray(seeds))


def later(seed: int, step: int) -> int:
    """The seed of what begins at a step of a run that `seed` began."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])


def sharding(num_seeds: int, devices: Sequence[Any]) -> jax.sharding.NamedSharding | None:
    """The leading axis spread over the devices, if they divide it evenly; None for one device."""
    if len(devices) == 1 or num_seeds % len(devices):
        return None
    mesh = jax.sharding.Mesh(np.asarray(devices), ("seeds",))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seeds"))


def mapped(
    function: Callable[..., Any],
    *,
    donate: tuple[int, ...] = (),
    placement: jax.sharding.NamedSharding | None = None,
    **static: Any,
) -> Any:
    """The function over a leading axis R of its arguments, compiled.

    Args:
        function: written for one seed.
        donate: positions of the arguments whose memory the result may take.
        placement: from `sharding`.
        static: keyword arguments that are the same for all seeds.
    """
    # The same placement for inputs and outputs: what a function returns then fits what the next
    # call expects, and nothing is compiled twice.
    placed: dict[str, Any] = {}
    if placement is not None:
        placed = {"in_shardings": placement, "out_shardings": placement}
    batched = jax.vmap(functools.partial(function, **static))
    return jax.jit(batched, donate_argnums=donate, **placed)


def replicated(tree: Any, num_seeds: int, placement: jax.sharding.NamedSharding | None) -> Any:
    """The arrays of a tree once for each seed, `[R, ...]`, where `mapped` functions expect them."""
    return placed(
        jax.tree.map(lambda x: np.broadcast_to(x, (num_seeds, *np.shape(x))), tree), placement
    )


def placed(tree: Any, placement: jax.sharding.NamedSharding | None) -> Any:
    """Arrays `[R, ...]` where `mapped` functions expect them."""
    if placement is None:
        return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), tree)
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x), placement), tree)
