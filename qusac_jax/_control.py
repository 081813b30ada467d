"""Control flow that JAX's own primitives do not offer."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


def apply_if(predicate: jax.Array, function: Callable[[T], T], operand: T) -> T:
    """`function(operand)` if the predicate `[]` holds, else `operand`.

    A loop of at most one turn: unlike `jax.lax.cond`, which computes both branches under `vmap`, it
    skips the work when nobody needs it.
    """

    def turn(carry):
        return function(carry[0]), jnp.zeros((), bool)

    return jax.lax.while_loop(lambda carry: carry[1], turn, (operand, predicate))[0]
