"""Plain Python values to bytes and back, exactly, without pickle.

JSON with tags for what JSON does not know: arrays, NumPy scalars, tuples and random generators.
Floats keep all their bits (Python writes the shortest text that reads back the same).
"""

import base64
import json
from typing import Any

import numpy as np


class NotPlainError(TypeError):
    """A value that is not made of plain data."""


def to_json(encoded: Any) -> bytes:
    """Text of what `encode` returned, or of lists and string-keyed dicts of that."""
    return json.dumps(encoded, separators=(",", ":")).encode()


def from_json(data: bytes) -> Any:
    """Inverse of `to_json`; raises `ValueError` for anything else."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(
            f"environment state is damaged ({error}); restore another checkpoint"
        ) from error


def encode(value: Any) -> Any:
    """The JSON form of nested lists, tuples, dicts, numbers, arrays and random generators.

    Raises:
        NotPlainError: for anything else.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {"array": [value.dtype.str, list(value.shape), _base64(value)]}
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        return {"scalar": [value.dtype.str, _base64(value)]}
    if type(value) is list:
        return {"list": [encode(item) for item in value]}
    if type(value) is tuple:
        return {"tuple": [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, np.random.RandomState):
        return {"random_state": encode(value.get_state(legacy=False))}
    if isinstance(value, np.random.Generator):
        bit_generator = value.bit_generator
        return {"generator": [type(bit_generator).__name__, encode(bit_generator.state)]}
    raise NotPlainError(f"{type(value).__module__}.{type(value).__qualname__}")


def decode(value: Any) -> Any:
    """Inverse of `encode`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "array":
            dtype, shape, data = content
            return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
        case "scalar":
            dtype, data = content
            return np.frombuffer(base64.b64decode(data), dtype)[0]
        case "list":
            return [decode(item) for item in content]
        case "tuple":
            return tuple(decode(item) for item in content)
        case "dict":
            return {decode(key): decode(item) for key, item in content}
        case "random_state":
            random_state = np.random.RandomState()
            random_state.set_state(decode(content))
            return random_state
        case "generator":
            name, state = content
            bit_generator = getattr(np.random, name)()
            bit_generator.state = decode(state)
            return np.random.Generator(bit_generator)
        case _:
            raise ValueError(f"environment state has the unknown tag {kind!r}; it is damaged")


def _base64(value: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
