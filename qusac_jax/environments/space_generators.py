"""The random generators that Gymnasium's spaces draw `sample()` from."""

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

Generators = list[np.random.Generator | None]


def spaces_of(layer: Any) -> dict[str, gymnasium.Space]:
    """The spaces that are attributes of an environment or wrapper, or of its class."""
    attributes: dict[str, Any] = {}
    for owner in reversed(type(layer).__mro__):
        attributes |= vars(owner)
    attributes |= vars(layer)
    return {key: value for key, value in attributes.items() if isinstance(value, gymnasium.Space)}


def generators(space: gymnasium.Space) -> Generators:
    """Of a space and those inside it; None where nothing has been drawn."""
    return [part._np_random for part in _parts(space)]


def set_generators(space: gymnasium.Space, values: Generators) -> None:
    """Gives a space, and those inside it, these generators."""
    for part, generator in zip(_parts(space), values, strict=True):
        vars(part)["_np_random"] = generator  # None is what a space begins with


def _parts(space: gymnasium.Space) -> Iterator[gymnasium.Space]:
    yield space
    inside = getattr(space, "spaces", ())
    for part in inside.values() if isinstance(inside, dict) else inside:
        yield from _parts(part)
