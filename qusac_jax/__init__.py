"""Epistemic uncertainty about values, in JAX."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qusac_jax.policy import load_policy

__all__ = ["load_policy"]


def __getattr__(name: str) -> Any:
    # Loaded on demand: `import qusac_jax.ube` should not pay for flax, distrax and Orbax.
    if name == "load_policy":
        from qusac_jax.policy import load_policy

        return load_policy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
