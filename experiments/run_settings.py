"""What makes two deep runs of one task different things: their names and settings."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments import unread
from experiments.config_file import replaced
from experiments.files import flatten, plain
from experiments.retired import RETIRED
from qusac_jax.qusac import presets
from qusac_jax.qusac.config import Config

# What agents without a use of U are called by what their critics learn from, however they came to
# be: an online run goes on with the agent of an offline one.
_BASELINES = {"replay": "sac", "model": "mbpo"}


def name_of(preset: str, method: str, critic_data: str | None = None) -> str:
    """What a run is called: its method, or its preset, and the method if that is not its own.

    Args:
        preset: one of `PRESETS`, or of another version.
        method: what is estimated.
        critic_data: of the configuration, if it is known.
    """
    if preset == "qusac":
        return _BASELINES.get(critic_data or "", method) if method == "ensemble_mean" else method
    own_method = presets.PRESETS[preset].method if preset in presets.PRESETS else method
    return preset if method == own_method else f"{preset} {method}"


def dataset_name(given: str) -> str:
    """What a dataset is called, wherever it lies.

    Args:
        given: a Minari id, a folder with such a dataset, or an HDF5 file.
    """
    path = pathlib.PurePath(given)
    return path.stem if path.suffix == ".hdf5" else "/".join(path.parts[-2:])


def of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run's config.json holds, by today's names."""
    inner = config.get("config")
    fields = {**RETIRED, **flatten(inner)} if isinstance(inner, dict) else {}
    # As JSON has them, where a tuple is a list.
    defaults = flatten(json.loads(json.dumps(dataclasses.asdict(Config()))))
    if isinstance(inner, dict) and "dynamics" in inner:  # what came later, it did by default
        fields = defaults | fields
    for today in defaults:
        group, _, leaf = today.rpartition(".")
        if group and today not in fields:  # of a time when the hyperparameters had no groups
            names = (f"{group}_{leaf}", leaf, f"fit_{leaf}")
            old = next((name for name in names if name in fields), None)
            if old is not None:
                fields[today] = fields.pop(old)
    others = {name: config.get(name) for name in ("action_cost", "termination")}
    # Seeds may continue different offline runs, as long as these learned from the same dataset.
    others["init_from"] = config.get("init_from") and (
        f"a run on {str(config.get('init_from_dataset') or 'a dataset')[:8]}"
    )
    data = config.get("dataset")
    fields |= {name: defaults[name] for name in _without_effect(fields, isinstance(data, dict))}
    if isinstance(data, dict):  # two may have the same name, and one may be in two places
        name = dataset_name(str(data.get("dataset")))
        others["dataset"] = f"{name} ({str(data.get('sha256'))[:8]})"
        others["env"] = config.get("env")  # to evaluate in
        bounds = ("action_low", "action_high")
        others |= {f"dataset.{bound}": data.get(bound) for bound in bounds}
    return fields | others


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of settings in which runs differ, in alphabetical order.

    A setting that only some runs know, because others are of another version, is a difference as
    long as today's programs know it.
    """
    today = {*flatten(dataclasses.asdict(Config())), *RETIRED}
    names = sorted({name for one in settings for name in one})
    result = []
    for name in names:
        values = [one[name] for one in settings if name in one]
        is_same = all(value == values[0] for value in values)
        if not is_same or (len(values) < len(settings) and name in today):
            result.append(name)
    return result


def describe(settings: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """A word or two for each of the named settings."""
    return [
        plain(f"{name}={settings[name]}" if name in settings else f"no {name}") for name in names
    ]


def _without_effect(fields: Mapping[str, Any], is_offline: bool) -> set[str]:
    """Hyperparameters that the run does not read, whose values make no difference."""
    known = flatten(dataclasses.asdict(Config()))
    if ":" in str(fields.get("method")):  # of one's own, which would have to be imported
        return set()
    try:
        config = replaced(Config(), {name: fields[name] for name in known if name in fields})
    except (ValueError, TypeError):  # of another version, or damaged
        return set()
    return unread.names(config, is_offline=is_offline)
