"""Plain Python values to bytes and back, exactly, without pickle.

JSON with tags for what JSON does not know: arrays, NumPy scalars, tuples and random generators.
Floats keep all their bits (Python writes the shortest text that reads back the same). Objects that
are one object stay one (`ref`: which of the mutable objects before it), and arrays that share
memory go on sharing it (`view` of a `memory`). Arrays keep their order in memory (`strided`), on
which the rounding of sums and products depends, and those that look into a simulator's go on to
(`outside`).
"""

import base64
import collections
import functools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard

import numpy as np

from qusac_jax.environments import array_memory

_NUMBERS = "biufc"  # kinds of dtypes
_FACTORIES = {None: None, **{kind.__name__: kind for kind in (bool, dict, float, int, list, str)}}


class NotPlainError(TypeError):
    """A value that is not made of plain data."""


def to_json(encoded: Any) -> bytes:
    """Text of what an `Encoder` returned, or of lists and string-keyed dicts of that."""
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
    """The JSON form of one value; see `Encoder`."""
    return Encoder([value]).encode(value)


class Encoder:
    """Encodes values that may share objects and memory with each other."""

    def __init__(self, values: Iterable[Any]):
        """Finds out what is shared.

        Args:
            values: all that will be encoded; they must stay as they are until then.
        """
        roots: dict[int, set[int]] = {}
        for array in _arrays(values, set()):
            roots.setdefault(id(array_memory.root_of(array)), set()).add(id(array))
        self._shared = {root for root, arrays in roots.items() if len(arrays) > 1}
        self._numbers: dict[int, int] = {}  # of the mutable objects so far, in their order
        self._open: set[int] = set()  # lists and dicts around the current value

    def encode(self, value: Any) -> Any:
        """The JSON form of nested lists, tuples, dicts, numbers, arrays and random generators.

        Raises:
            NotPlainError: for anything else.
        """
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
            return {"scalar": [value.dtype.str, _base64(value)]}
        if type(value) is tuple:
            return {"tuple": [self.encode(item) for item in value]}
        if id(value) in self._numbers and id(value) not in self._open:
            return {"ref": self._numbers[id(value)]}
        if _is_plain_array(value):
            return self._array(value)
        if isinstance(value, np.random.RandomState):
            self._count(value)
            return {"random_state": encode(value.get_state(legacy=False))}
        if isinstance(value, np.random.Generator):
            self._count(value)
            bit_generator = value.bit_generator
            return {"generator": [type(bit_generator).__name__, encode(bit_generator.state)]}
        if _is_container(value):
            return self._container(value)
        what = f"{type(value).__module__}.{type(value).__qualname__}"
        if type(value) is collections.defaultdict:
            what += f" that makes {value.default_factory!r}"
        raise NotPlainError(what)

    def _count(self, value: Any) -> None:
        self._numbers[id(value)] = len(self._numbers)

    def _container(self, value: Any) -> Any:
        if id(value) in self._open:
            raise NotPlainError(f"{type(value).__name__} that contains itself")
        self._count(value)
        self._open.add(id(value))
        try:
            if isinstance(value, dict):
                pairs = [[self.encode(key), self.encode(item)] for key, item in value.items()]
                if isinstance(value, collections.defaultdict):
                    factory = value.default_factory
                    return {"defaultdict": [factory and factory.__name__, pairs]}
                return {type(value).__name__: pairs}
            return {"list": [self.encode(item) for item in value]}
        finally:
            self._open.remove(id(value))

    def _array(self, array: np.ndarray) -> Any:
        root = array_memory.root_of(array)
        if id(root) not in self._shared:
            self._count(array)
            content = [array.dtype.str, list(array.shape), _base64(array)]
            if array_memory.is_outside(array):
                return {"outside": content}
            if array.flags.c_contiguous:
                return {"array": content}
            return {"strided": [*content, list(array.strides)]}
        # An array that is its own root counts twice, as memory and as an array.
        memory: Any = {"ref": self._numbers.get(-id(root))}
        if memory["ref"] is None:
            self._numbers[-id(root)] = len(self._numbers)
            memory = {"memory": _base64(root.ravel(order="K"))}
        self._count(array)
        offset = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        layout = [array.dtype.str, list(array.shape), list(array.strides), offset]
        return {"view": [memory, *layout]}


class Decoder:
    """Decodes what one `Encoder` encoded, in the same order."""

    def __init__(self) -> None:
        """Starts with no objects to refer to."""
        self._objects: list[Any] = []
        self._used: set[int] = set()  # current objects that stand for a decoded one

    def decode(self, encoded: Any, current: Any = None) -> Any:
        """Inverse of `Encoder.encode`.

        Args:
            encoded: a value in its JSON form.
            current: the object now in its place. Random generators and arrays over memory that is
                not NumPy's are overwritten in place, and what has the right value already is kept:
                objects that are not saved may refer to them too.
        """
        if not isinstance(encoded, dict):
            return encoded
        ((kind, content),) = encoded.items()
        if kind == "ref":
            return self._objects[content]
        if kind == "scalar":
            dtype, data = content
            return np.frombuffer(base64.b64decode(data), dtype)[0]
        if kind == "tuple":
            inside = _children(current, tuple, len(content))
            pairs = zip(content, inside, strict=True)
            return tuple(self.decode(item, now) for item, now in pairs)
        if kind == "view":
            memory, dtype, shape, strides, offset = content
            buffer = self.decode(memory)
            view = np.ndarray(shape, np.dtype(dtype), buffer, offset, strides)
            self._objects.append(view)
            return view
        number = len(self._objects)
        self._objects.append(None)
        is_free = id(current) not in self._used
        value = self._object(kind, content, current if is_free else None)
        self._objects[number] = value
        self._used.add(id(value))
        return value

    def _object(self, kind: str, content: Any, current: Any) -> Any:
        match kind:
            case "array":
                dtype, shape, data = content
                array = np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
                return array_memory.into(current, array)
            case "outside":
                dtype, shape, data = content
                array = np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
                return array_memory.to_outside(current, array)
            case "strided":
                dtype, shape, data, strides = content
                array = np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
                return array_memory.into(current, array_memory.strided(array, strides))
            case "memory":
                return np.frombuffer(base64.b64decode(content), np.uint8).copy()
            case "list":
                inside = _children(current, list, len(content))
                items = [self.decode(e, now) for e, now in zip(content, inside, strict=True)]
                return current if type(current) is list and _is_same(items, current) else items
            case "dict":
                return self._dict(content, current if type(current) is dict else None, dict)
            case "OrderedDict" | "Counter":
                make = getattr(collections, kind)
                return self._dict(content, current if type(current) is make else None, make)
            case "defaultdict":
                name, pairs = content
                factory = _FACTORIES[name]
                is_one = type(current) is collections.defaultdict
                is_same = is_one and current.default_factory is factory
                make = functools.partial(collections.defaultdict, factory)
                return self._dict(pairs, current if is_same else None, make)
            case "random_state":
                kept = isinstance(current, np.random.RandomState)
                random_state = current if kept else np.random.RandomState()
                random_state.set_state(decode(content))
                return random_state
            case "generator":
                name, state = content
                kept = isinstance(current, np.random.Generator)
                if not kept or type(current.bit_generator).__name__ != name:
                    current = np.random.Generator(getattr(np.random, name)())
                current.bit_generator.state = decode(state)
                return current
            case _:
                raise ValueError(f"environment state has the unknown tag {kind!r}; it is damaged")

    def _dict(
        self,
        content: Any,
        current: dict[Any, Any] | None,
        make: Callable[[dict[Any, Any]], dict[Any, Any]],
    ) -> dict[Any, Any]:
        now = current or {}
        keys = [decode(key) for key, _ in content]
        items = [
            self.decode(item, now.get(key)) for key, (_, item) in zip(keys, content, strict=True)
        ]
        if current is not None and keys == list(now) and _is_same(items, list(now.values())):
            return current
        return make(dict(zip(keys, items, strict=True)))


def decode(encoded: Any) -> Any:
    """Inverse of `encode`."""
    return Decoder().decode(encoded)


def weight(encoded: Any) -> int:
    """How many numbers, items and characters an encoded value holds."""
    if isinstance(encoded, list):
        return sum(map(weight, encoded))
    if isinstance(encoded, dict):
        return sum(map(weight, encoded.values()))
    return len(encoded) if isinstance(encoded, str) else 1


def _is_plain_array(value: Any) -> TypeGuard[np.ndarray]:
    """Whether it is one of numbers, and no matrix or masked array, which computes otherwise."""
    return type(value) in (np.ndarray, np.memmap) and value.dtype.kind in _NUMBERS


def _is_container(value: Any) -> bool:
    """Whether it is a list or a dictionary that is known how to make again."""
    if type(value) is collections.defaultdict:
        return value.default_factory in _FACTORIES.values()
    return type(value) in (list, dict, collections.OrderedDict, collections.Counter)


def _arrays(values: Iterable[Any], seen: set[int]) -> Iterator[np.ndarray]:
    """All arrays of numbers in nested lists, tuples and dicts."""
    for value in values:
        if _is_plain_array(value):
            yield value
        elif isinstance(value, list | tuple | dict) and id(value) not in seen:
            seen.add(id(value))
            yield from _arrays(value.values() if isinstance(value, dict) else value, seen)


def _children(current: Any, kind: type, count: int) -> list[Any]:
    """The items of a container of this kind and length; else as many times None."""
    fits = type(current) is kind and len(current) == count
    return list(current) if fits else [None] * count


def _is_same(values: list[Any], others: list[Any]) -> bool:
    return len(values) == len(others) and all(
        a is b or (_is_constant(a) and type(a) is type(b) and _bits(a) == _bits(b))
        for a, b in zip(values, others, strict=True)
    )


def _bits(value: Any) -> str:
    """Of a constant: other than its value, they tell 0 and -0 apart."""
    return _base64(value) if isinstance(value, np.generic) else repr(value)


def _is_constant(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | np.generic)


def _base64(value: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(value).tobytes()).decode("ascii")
