"""λ of eq. (9), policy_opt, along a run: from avoiding uncertainty to seeking it, or the other way.

A schedule is written as `KIND:START:END:UPDATES`: it goes from START to END within that many
gradient updates and stays there. With `Config.risk_awaits_reward`, updates count from when D holds
a positive reward.
"""

import math
import types
from collections.abc import Callable, Mapping

import optax

from qusac_jax._messages import did_you_mean

_MOST_UPDATES = 10**9  # they are counted in 32 bits


def _cosine(start: float, end: float, updates: int) -> optax.Schedule:
    decay = optax.cosine_decay_schedule(1.0, updates)
    return lambda count: end + (start - end) * decay(count)


SCHEDULES: Mapping[str, Callable[[float, float, int], optax.Schedule]] = types.MappingProxyType(
    {"linear": optax.linear_schedule, "cosine": _cosine}
)


def parse(text: str) -> optax.Schedule:
    """The schedule, a function from the number of gradient updates to λ.

    Args:
        text: such as `linear:-1:1:200000`.

    Raises:
        ValueError: if it is no schedule.
    """
    if not isinstance(text, str):
        raise ValueError(
            f"risk_schedule must be KIND:START:END:UPDATES such as linear:-1:1:200000, got {text!r}"
        )
    kind, *numbers = text.split(":")
    if kind not in SCHEDULES:
        raise ValueError(
            f"risk_schedule {text!r} has the unknown kind {kind!r}{did_you_mean(kind, SCHEDULES)}; "
            f"write it as KIND:START:END:UPDATES with one of {', '.join(SCHEDULES)}"
        )
    try:
        start, end = (float(number) for number in numbers[:2])
        (updates,) = (int(number) for number in numbers[2:])
    except ValueError:
        raise ValueError(
            f"risk_schedule must be KIND:START:END:UPDATES such as linear:-1:1:200000, got {text!r}"
        ) from None
    if not (math.isfinite(start) and math.isfinite(end) and 0 < updates <= _MOST_UPDATES):
        raise ValueError(
            f"risk_schedule must have finite ends and 1 to {_MOST_UPDATES} updates, got {text!r}"
        )
    return SCHEDULES[kind](start, end, updates)
