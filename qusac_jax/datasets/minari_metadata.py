"""What `save` writes into the metadata of a Minari dataset, beside what Minari itself writes."""

import json
from collections.abc import Mapping
from typing import Any

from qusac_jax._actions import as_action_cost
from qusac_jax._messages import first_line
from qusac_jax.datasets.minari_files import COST_KEY, ENV_KEY
from qusac_jax.datasets.scores import ScoreReference, check_reference, metadata_reference

# What Minari itself says of a dataset, from its environment and episodes.
_OF_MINARI = (
    "env_spec",
    "eval_env_spec",
    "observation_space",
    "action_space",
    "data_format",
    "total_episodes",
    "total_steps",
)


def entries(
    dataset_id: str,
    env_name: str,
    metadata: Mapping[str, Any],
    reference: ScoreReference | None,
    action_cost: float | None,
) -> dict[str, Any]:
    """The metadata that `load` reads, and those of the caller.

    Args:
        dataset_id: for messages.
        env_name: for `environments.make`.
        metadata: of the caller.
        reference: as for `save`.
        action_cost: as for `save`.

    Raises:
        ValueError: for what Minari or `load` would refuse.
    """
    found: dict[str, Any] = {**_as_minari_has_it(metadata), ENV_KEY: env_name}
    if reference is not None:
        low, high, origin = check_reference(reference)
        found |= {"ref_min_score": low, "ref_max_score": high, "reference_origin": origin}
    if action_cost is not None:
        found[COST_KEY] = as_action_cost("action_cost", action_cost)
    # The caller's own entries may have these names, too.
    metadata_reference(found, dataset_id)
    if found.get(COST_KEY) is not None:
        found[COST_KEY] = as_action_cost(f"metadata: {COST_KEY}", found[COST_KEY])
    return found


def _as_minari_has_it(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Entries as Minari asks for them, which has sets of people, and asserts.

    Raises:
        ValueError: if one of them is something else, or nothing that JSON can hold.
    """
    entries = dict(metadata)
    for key in ("author", "author_email"):
        if key in entries:
            given = entries[key]
            people = [given] if isinstance(given, str) else given
            if not isinstance(people, (list, tuple, set)) or not all(
                isinstance(one, str) for one in people
            ):
                raise ValueError(f"metadata: {key} must be text or a list of it, got {given!r}")
            entries[key] = set(people)
    if owned := sorted(set(entries) & set(_OF_MINARI)):
        raise ValueError(f"metadata: {owned[0]} is written by Minari; leave it out")
    if not isinstance(link := entries.get("code_permalink", ""), str):
        raise ValueError(f"metadata: code_permalink must be text, got {link!r}")
    try:
        others = {key: value for key, value in entries.items() if not isinstance(value, set)}
        json.dumps(others, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"metadata: {first_line(error)}; give numbers, text, and lists and dicts of them"
        ) from error
    return entries
