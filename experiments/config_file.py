"""Hyperparameters from a preset, a JSON file and flags: `--config_file=FILE --config.FIELD=VALUE`.

The file is the config.json of a run, whose hyperparameters are all taken, or a mapping of some
hyperparameters to values: with groups nested as there, or with names as the flags have them, such
as `dynamics.hidden`. Flags on the command line win.
"""

import contextlib
import dataclasses
import difflib
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from absl import flags

from experiments import config_flags, path_flag
from experiments.files import flatten, read_json, warn
from experiments.retired import RETIRED
from experiments.run_kind import is_tabular
from qusac_jax._messages import did_you_mean
from qusac_jax.qusac.config import Config
from qusac_jax.qusac.presets import PRESETS


class Given(NamedTuple):
    """What a file holds."""

    path: pathlib.Path
    fields: dict[str, Any]  # by name, such as `dynamics.hidden`
    preset: str | None  # of the run whose config.json it is; None for some fields and values
    is_offline: bool = False  # whether that run learned from a dataset
    gone: Mapping[str, Any] = types.MappingProxyType({})  # what that run had and none has now


def of_run(path: pathlib.Path, *, argument: str, remedy: str) -> Config:
    """The hyperparameters of a run, from its config.json.

    Args:
        path: workdir of the run.
        argument: what errors say the path was given as.
        remedy: what they advise.

    Raises:
        ValueError: if they cannot be read, or are those of another version.
    """
    try:
        about = read_json(path / "config.json", remedy)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from error
    content = about.get("config", {})
    if is_tabular(about):
        raise ValueError(f"{argument}: {path} is a run of experiments.tabular; {remedy}")
    default = Config()
    known = flatten(dataclasses.asdict(default))
    try:
        fields, gone = _without_retired(flatten(content))
        unknown = [name for name in (*fields, *gone) if name not in known]
        if unknown or "dynamics" not in content:
            raise KeyError(unknown[0] if unknown else "dynamics")
        return replaced(default, fields)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{argument}: {path} is of another version ({error}); {remedy}") from error


def _without_retired(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields that exist today, and retired ones whose values differ from what runs do now."""
    kept = {name: value for name, value in fields.items() if name not in RETIRED}
    gone = {
        name: fields[name] for name in RETIRED if fields.get(name, RETIRED[name]) != RETIRED[name]
    }
    return kept, gone


def define_flag(options: flags.FlagValues) -> None:
    """Adds `--config_file`."""
    path_flag.define(
        options,
        "config_file",
        None,
        "JSON with hyperparameters: the config.json of another run, or some fields and values",
    )


def read(path: str) -> Given:
    """The hyperparameters in a file.

    Raises:
        ValueError: if it cannot be read, or is neither all of a run nor some fields.
    """
    content = read_json(pathlib.Path(path), "pass another --config_file")
    inner = content.get("config")
    if not isinstance(inner, dict):
        return Given(pathlib.Path(path), flatten(content), None)
    preset = content.get("preset")
    if preset is not None and not (isinstance(preset, str) and preset in PRESETS):
        raise ValueError(
            f"config_file {path!r} is of a run with the preset {preset!r}, which there is not; "
            f"choose from {', '.join(PRESETS)}"
        )
    if preset is None or "dynamics" not in inner:  # or what it lacks would be taken for defaults
        raise ValueError(
            f"config_file {path!r} has 'config', but is no config.json of a run, which has the "
            "preset and every hyperparameter; put its fields at the top level"
        )
    fields, gone = _without_retired(flatten(inner))
    return Given(pathlib.Path(path), fields, preset, bool(content.get("dataset")), gone)


def given_fields(options: Any) -> set[str]:
    """Names of the fields that a command line, or a file of some fields, says.

    The config.json of a run has all of them, so that it asks for none in particular.

    Args:
        options: the flags, with a group `config`.
    """
    given = read(options.config_file) if options.config_file else None
    from_file = given.fields if given is not None and given.preset is None else {}
    return {*from_file, *config_flags.given_fields(options, "config")}


# What a program makes of all fields, knowing the names of those that the file or a flag gives.
Change = Callable[[dict[str, Any], Collection[str]], dict[str, Any]]


def read_config(
    options: Any, base: Any, given: Given | None, *, change: Change | None = None
) -> Any:
    """The hyperparameters that a preset, a file and flags make together, the last one winning.

    `risk` alone is a constant λ, and `risk_schedule` alone begins at once: neither keeps what a
    preset or the file says of the other and of `risk_awaits_reward`. Only the result is checked: a
    value from one of them may be valid only together with the others.

    Args:
        options: the flags, with a group `config`.
        base: the dataclass of the preset, perhaps with others inside.
        given: the file, if there is one.
        change: of the result, before it is checked.

    Raises:
        ValueError: for a name that is no field, and for a value that the dataclass refuses.
    """
    base = base if given is None else _base(base, given)
    flags_given = config_flags.given_fields(options, "config")
    file_given = {} if given is None else given.fields
    values = _over(_over(flatten(dataclasses.asdict(base)), file_given), flags_given)
    if change is not None:
        values = change(values, {*file_given, *flags_given})
    try:
        return replaced(base, values)
    except ValueError as error:
        # The file's fault if it is the same without the flags.
        if given is not None and f"{error}" == _refusal(base, file_given):
            raise ValueError(f"config_file {str(given.path)!r}: {error}") from error
        raise


def changed(config: Any, given: Given) -> Any:
    """A dataclass with the values of the file in place of its own.

    Args:
        config: a dataclass, perhaps with others inside.
        given: from `read`.

    Raises:
        ValueError: for a name that is no field, and for a value that the dataclass refuses.
    """
    base = _base(config, given)
    try:
        return replaced(base, _over(flatten(dataclasses.asdict(base)), given.fields))
    except ValueError as error:
        raise ValueError(f"config_file {str(given.path)!r}: {error}") from error


def _over(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values with those that are given in their place, of λ all three: a number is constant."""
    of_risk = {"risk_schedule": None, "risk_awaits_reward": False}
    replaces_risk = of_risk.keys() <= values.keys() and {"risk", "risk_schedule"} & given.keys()
    return {**values, **(of_risk if replaces_risk else {}), **given}


def _base(config: Any, given: Given) -> Any:
    """The dataclass that the file's values go into; raises `ValueError` for an unknown name.

    It is that of all defaults for the config.json of a run: a field that the run lacks was added
    later, and its default is what runs did before.
    """
    for name, value in given.gone.items():
        warn(f"config_file {str(given.path)!r}: {name}={value} is gone, it is {RETIRED[name]} now")
    known = list(flatten(dataclasses.asdict(config)))
    for name in given.fields:
        if name not in known:
            raise ValueError(
                f"config_file {str(given.path)!r}: {name!r} is no hyperparameter"
                f"{_suggestion(name, known)}; leave it out, or see --help for the names"
            )
    return config if given.preset is None else type(config)()


def _refusal(config: Any, fields: Mapping[str, Any]) -> str:
    """What a dataclass says against values of some of its fields, if anything."""
    try:
        replaced(config, _over(flatten(dataclasses.asdict(config)), fields))
    except ValueError as error:
        return f"{error}"
    return ""


def _suggestion(name: str, known: list[str]) -> str:
    """The nearest names; those that end like it come first, for a group that was left out."""
    leaves = {field.rpartition(".")[2]: field for field in known}
    near = difflib.get_close_matches(name.rpartition(".")[2], leaves, n=1, cutoff=0.9)
    if near:
        return f" (did you mean {leaves[near[0]]!r}?)"
    return did_you_mean(name, known)


def replaced(config: Any, fields: Mapping[str, Any], prefix: str = "") -> Any:
    """A dataclass with other values, and lists of JSON as tuples.

    Args:
        config: perhaps with other dataclasses inside.
        fields: values by name, such as `dynamics.hidden`.
        prefix: of the names of these fields.

    Raises:
        ValueError: for a value that the dataclass refuses.
    """
    hints = typing.get_type_hints(type(config))
    changes = {}
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            changes[field.name] = replaced(value, fields, f"{name}.")
        elif name in fields:
            changes[field.name] = _converted(fields[name], hints[field.name])
    return dataclasses.replace(config, **changes)


def _converted(value: Any, hint: Any) -> Any:
    """A value of JSON with the type of its field: lists become tuples, and integers floats.

    One that is too large for a float stays as it is, for the field's check to refuse.
    """
    if isinstance(value, list) and typing.get_origin(hint) is tuple:
        return tuple(value)
    kinds = (hint, *typing.get_args(hint))
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds:
        with contextlib.suppress(OverflowError):
            return float(value)
    return value
