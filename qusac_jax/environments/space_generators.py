"""The random generators that Gymnasium's spaces draw `sample()` from, and the global ones."""

import contextlib
import random
from collections.abc import Iterable, Iterator
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


@contextlib.contextmanager
def kept(layers: Iterable[Any]) -> Iterator[None]:
    """Within it, environments may draw: what is not theirs alone is then as it was before.

    That is Python's and NumPy's global generators, and those of spaces that belong to a class.

    Args:
        layers: of the environment, wrappers included.
    """
    before, of_python = of_numpy(), random.getstate()
    of_spaces = [
        (space, generators(space)) for layer in layers for space in spaces_of(layer).values()
    ]
    states = [
        (generator.bit_generator, generator.bit_generator.state)
        for _, drawn in of_spaces
        for generator in drawn
        if generator is not None
    ]
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002  (environments use it)
        random.setstate(of_python)
        for space, drawn in of_spaces:
            set_generators(space, drawn)
        for bit_generator, bits in states:
            bit_generator.state = bits


def of_numpy() -> Any:
    """State of NumPy's global generator."""
    return np.random.get_state(legacy=False)  # noqa: NPY002  (environments use it)


def _parts(space: gymnasium.Space) -> Iterator[gymnasium.Space]:
    yield space
    inside = getattr(space, "spaces", ())
    for part in inside.values() if isinstance(inside, dict) else inside:
        yield from _parts(part)
