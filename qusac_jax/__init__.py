"""Epistemic uncertainty about values, in JAX."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qusac_jax import datasets, environments, posterior, qusac, tabular, ube
    from qusac_jax.export import export_policy
    from qusac_jax.policy import load_policy, save_policy

__version__ = "0.2.0.dev0"

__all__ = [
    "datasets",
    "environments",
    "export_policy",
    "load_policy",
    "posterior",
    "qusac",
    "save_policy",
    "tabular",
    "ube",
]
# Functions of the package, by the module that they come from.
_FUNCTIONS = {
    "export_policy": "qusac_jax.export",
    "load_policy": "qusac_jax.policy",
    "save_policy": "qusac_jax.policy",
}


def __getattr__(name: str) -> Any:
    # Loaded on demand: `import qusac_jax.ube` should not pay for flax, distrax and Orbax.
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in __all__:
        return importlib.import_module(f"qusac_jax.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
