"""Whether functions of a user's own, which a `Config` names as `MODULE:NAME`, fit into the agent.

Axes: N members, M critics per member, B batch, J actions per next state, O observation size.
"""

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp

from qusac_jax._messages import with_type
from qusac_jax.qusac import penalties, regularizers, uncertainty
from qusac_jax.qusac.config import Config


def check(config: Config, observation_size: int) -> None:
    """Raises `ValueError` unless what is one's own returns what the agent needs.

    Method, penalty and regularizer are traced, not run, on what they will be given.

    Args:
        config: which names them.
        observation_size: O.
    """
    # A length that no other axis has, so that a mistaken axis shows.
    batch = 2 + config.num_members + config.num_critics + config.actions_drawn + observation_size
    if config.method not in uncertainty.METHODS:
        _check_method(config, batch, observation_size)
    if config.penalty not in (None, *penalties.PENALTIES):
        of_members = _like(config.num_members, batch, observation_size + 1)
        _check(
            f"penalty {config.penalty!r}",
            penalties.find(config.penalty),
            "mean and std [N, B, O + 1]",
            (of_members, of_members),
            returns=(batch,),
        )
    if config.regularizer not in (None, *regularizers.REGULARIZERS):
        _check(
            f"regularizer {config.regularizer!r}",
            regularizers.find(config.regularizer),
            "q [N, M, B] and is_real [B]",
            (
                _like(config.num_groups, config.num_critics, batch),
                jax.ShapeDtypeStruct((batch,), bool),
            ),
            returns=(),
            has_gradient=True,
        )


def _check_method(config: Config, batch: int, observation_size: int) -> None:
    name, method = f"method {config.method!r}", config.qvariance
    if method.local is not None and method.direct is not None:
        raise ValueError(f"{name} has both local and direct; leave one of them out")
    values = _like_values(config, batch, observation_size)
    what = "qusac.uncertainty.Values"
    if (local := method.local) is not None:
        ahead = lambda values: local(values, config.discount)
        _check(name, ahead, f"{what} and the discount", (values,), returns=(batch,))
    if method.direct is not None:
        _check(name, method.direct, what, (values,), returns=(batch,), has_gradient=True)


def _like_values(config: Config, batch: int, observation_size: int) -> uncertainty.Values:
    """What the method is given of B = `batch` pairs."""
    method, members = config.qvariance, config.num_members
    if method.local is None or not method.asks_model:
        return uncertainty.Values(q=_like(config.num_groups, batch))
    next_q = _like(config.num_groups, members, config.actions_drawn, batch)
    return uncertainty.Values(
        next_q=next_q if method.reads_next_values else None,
        reward=_like(members, batch),
        change=_like(members, batch, observation_size),
        noise=_like(members, batch, observation_size),
    )


def _like(*shape: int) -> jax.Array:
    """An array for tracing."""
    return cast(jax.Array, jax.ShapeDtypeStruct(shape, jnp.float32))


def _check(
    name: str,
    function: Callable[..., jax.Array],
    what: str,
    arguments: tuple[Any, ...],
    *,
    returns: tuple[int, ...],
    has_gradient: bool = False,
) -> None:
    """Raises `ValueError` unless the function returns an array of that shape.

    Args:
        name: of the function, for the message.
        function: what is checked.
        what: it is a function of, likewise.
        arguments: that it is traced with.
        returns: the shape.
        has_gradient: whether it is differentiated by its first argument.
    """
    try:
        result = jax.eval_shape(function, *arguments)
        if has_gradient:
            total = lambda *arguments: jnp.sum(function(*arguments))
            jax.eval_shape(jax.grad(total), *arguments)
    except Exception as error:  # other people's functions raise anything
        raise ValueError(
            f"{name} cannot be traced{' or has no gradient' * has_gradient}: {with_type(error)}; "
            f"write it with jax.numpy as a function of {what}"
        ) from error
    given = (getattr(result, "shape", None), getattr(result, "dtype", None))
    if given != (returns, jnp.float32):
        described = f"{given[1]}{list(given[0])}" if given[0] is not None else repr(result)
        shapes = ", ".join(str(list(leaf.shape)) for leaf in jax.tree.leaves(arguments))
        raise ValueError(
            f"{name} must return float32{list(returns)} for {what} of shapes {shapes}, got "
            f"{described}"
        )
