"""What environments and datasets alike ask of actions and their cost."""

from typing import Any

from qusac_jax._fields import is_finite

UNBOUNDED = 1e10  # bound that MuJoCo gives an actuator without limits


def as_action_cost(where: str, cost: Any) -> float:
    """The cost rho as a float; raises `ValueError` unless it is a finite number of at least 0."""
    if not is_finite(cost) or cost < 0:
        raise ValueError(
            f"{where}: the action cost must be a finite number >= 0, got {cost!r}; correct it"
        )
    return float(cost)
