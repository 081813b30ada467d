"""Dataclass fields that carry their own check.

A configuration declares each field as `name: type = checked(default, check)` and calls
`check_fields` in `__post_init__`.
"""

import dataclasses
import math
import numbers
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from qusac_jax._messages import did_you_mean


class Check(NamedTuple):
    """What a value must satisfy."""

    holds: Callable[[Any], bool]
    requirement: str  # completes "FIELD must ..."
    remedy: str = ""


def checked(default: Any, check: Check) -> Any:
    """A field with this default and check."""
    return dataclasses.field(default=default, metadata={"check": check})


def check_fields(config: Any) -> None:
    """Raises `ValueError` for the first field of a dataclass that fails its check."""
    for field in dataclasses.fields(config):
        check, value = field.metadata.get("check"), getattr(config, field.name)
        if check is not None and not check.holds(value):
            remedy = f"; {check.remedy}" if check.remedy else ""
            raise ValueError(f"{field.name} must {check.requirement}, got {value!r}{remedy}")


def check_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Raises `ValueError` unless `value` is one of the choices; suggests the nearest."""
    if value not in tuple(choices):  # of a mapping, too, whatever the value is
        raise ValueError(
            f"{name} {value!r} is unknown{did_you_mean(value, choices)}; choose from "
            f"{', '.join(choices)}"
        )


def is_integer(value: Any) -> bool:
    """Whether it is an integer (NumPy's too), which `True` is not here."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Whether it is a finite number (NumPy's too), which `True` is not here."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        return is_number and math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def integer(least: int, remedy: str = "", *, most: int | None = None) -> Check:
    """An integer of at least `least` and, if there is a limit, at most `most`."""
    limit = "" if most is None else f" and at most {most}"
    return Check(
        lambda value: is_integer(value) and value >= least and (most is None or value <= most),
        f"be an integer of at least {least}{limit}",
        remedy,
    )


def at_least(least: float, remedy: str = "") -> Check:
    """A finite number of at least `least`."""
    return Check(
        lambda value: is_finite(value) and value >= least,
        f"be finite and at least {least:g}",
        remedy,
    )


def below_one(remedy: str) -> Check:
    """A number in [0, 1)."""
    return Check(lambda value: is_finite(value) and 0 <= value < 1, "lie in [0, 1)", remedy)


positive = Check(lambda value: is_finite(value) and value > 0, "be a positive finite number")
finite = Check(is_finite, "be finite")
finite_or_none = Check(lambda value: value is None or is_finite(value), "be finite or None")
fraction = Check(lambda value: is_finite(value) and 0 <= value <= 1, "lie in [0, 1]")
boolean = Check(lambda value: isinstance(value, bool), "be True or False")
layer_sizes = Check(
    lambda value: isinstance(value, tuple) and all(is_integer(n) and n > 0 for n in value),
    "be a tuple of positive layer sizes such as (256, 256)",
)
