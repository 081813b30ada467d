"""What a user names as `MODULE:NAME`."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from qusac_jax._fields import check_choice
from qusac_jax._messages import did_you_mean, with_type


def import_named(
    path: str,
    what: str,
    *,
    form: str = "MODULE:FUNCTION",
    kind: str = "function",
    is_one: Callable[[Any], bool] = callable,
) -> Any:
    """What `MODULE:NAME` names, a function or another object; imports, and so executes, the module.

    Args:
        path: the name.
        what: the argument that it was given for, for the message.
        form: how it is named there, likewise.
        kind: what it is there, likewise.
        is_one: whether an object of the module is of that kind.

    Raises:
        ValueError: if there is no such object.
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f"{what} must be named as {form}, got {path!r}")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # other people's modules raise anything
        named = form.partition("MODULE")[0] + path
        raise ValueError(
            f"{what}: the module of {named!r} cannot be imported: {with_type(error)}; start where "
            "it lies, or put that folder into PYTHONPATH, and name it as Python would import it "
            f"from there, such as {form.replace('MODULE', 'package.module')}"
        ) from error
    known = [key for key, value in vars(module).items() if is_one(value)]
    if name not in known:
        raise ValueError(
            f"{what}: the module {module_name!r} has no {kind} {name!r}"
            f"{did_you_mean(name, known)}; define it there, or name another"
        )
    return getattr(module, name)


def find(
    name: str,
    what: str,
    known: Mapping[str, Any],
    *,
    kind: str = "function",
    is_one: Callable[[Any], bool] = callable,
) -> Any:
    """The entry of a table that a hyperparameter names, or the object that `MODULE:NAME` does.

    Args:
        name: as the hyperparameter says it.
        what: the hyperparameter, for the message.
        known: the table.
        kind: what its entries are, likewise.
        is_one: whether an object of the module is of that kind.

    Raises:
        ValueError: if there is none.
    """
    if isinstance(name, str) and ":" in name:
        return import_named(name, what, form="MODULE:NAME", kind=kind, is_one=is_one)
    check_choice(what, name, (*known, "MODULE:NAME"))
    return known[name]
