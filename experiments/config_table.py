"""The hyperparameters as a page: `python -m experiments.config_table`.

Writes docs/hyperparameters.md. Names, values and words are those of the code; a test compares the
page with it.
"""

import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from experiments import cli, config_flags, files, markdown
from qusac_jax.qusac import presets
from qusac_jax.qusac.config import Config

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "hyperparameters.md"
_HEAD = """\
# Hyperparameters

This page is written by `python -m experiments.config_table`.

Each line is a field of [`qusac.Config`](api/config.md) and a flag `--config.FIELD`. The column
`qusac` has the values of the default [preset](methods.md#presets), online. The other columns have
only what differs from it: the same preset offline, the presets `paper` and `explore`, and `qusac`
with `--size=small`. (With `small`, `roll_out_every` of `paper` and `paper_mbpo` is 250, and
`rollouts_per_step` of `explore` and `explore_upper_bound` 50.) D is the replay buffer, offline the
dataset; D_model and D_1..D_N hold rollouts of the models. A run writes all its values to
config.json.

In Python, `presets.get("qusac")` has the values of the first column. `qusac.Config()` differs from
it: λ stays at 1 (`risk_schedule` none, `risk_awaits_reward` false), its models read and learn raw
units (`dynamics.normalize_inputs` no, `dynamics.normalize_targets` false), and they are rolled out
only after fits (`roll_out_every` 0).
Offline, `experiments.offline` makes `replay_capacity` the size of the dataset, and nothing reads
`warmup_steps` and `updates_per_step`.
"""
_OTHERS = """
## The other presets

Each is made of another preset; the table has what differs from that one. Offline, each takes the
values of the column `offline`, too; where λ is 0 online, it stays 0. Of `explore` and
`explore_upper_bound`, only `method` is left offline: schedule and units of λ, discount, steps
ahead, starts, uniform first actions, normalized observations and the prior over rewards are for
sparse rewards online. So offline `explore_upper_bound` is `qusac`.
"""
# Of what each other preset is made, and whether that is for learning from a dataset.
_MADE_OF: Mapping[str, tuple[str, bool]] = {
    "explore_upper_bound": ("explore", False),
    "paper_mbpo": ("paper", False),
    "paper_sac": ("qusac", False),
    "mbpo": ("qusac", False),
    "sac": ("qusac", False),
    "mopo": ("mbpo", True),
    "combo": ("mbpo", True),
}


def page() -> str:
    """The whole page."""
    base = presets.get("qusac")
    columns = {
        "offline": presets.get("qusac", is_offline=True),
        "`paper`": presets.get("paper"),
        "`explore`": presets.get("explore"),
        "small": presets.get("qusac", "small"),
    }
    names = ["field", "`qusac`", *columns, "what it is"]
    lines = [markdown.head(names, texts=(names[0], names[-1]))]
    for name, comment in _fields(base):
        value = _get(base, name)
        others = (_get(config, name) for config in columns.values())
        cells = ["" if other == value else _text(other) for other in others]
        lines.append(markdown.row([f"`{name}`", _text(value), *cells, comment]))
    return "\n".join([_HEAD, *lines, _OTHERS, *_other_presets()]) + "\n"


def _other_presets() -> Iterator[str]:
    columns = ("preset", "made of", "with")
    yield markdown.head(columns, texts=columns)
    for name, (base, is_offline) in _MADE_OF.items():
        before, after = (presets.get(one, is_offline=is_offline) for one in (base, name))
        changed = [
            f"`{field}` {_text(_get(after, field))}"
            for field, _ in _fields(before)
            if _get(after, field) != _get(before, field)
        ]
        where = ", offline" if is_offline else ""
        yield markdown.row([f"`{name}`", f"`{base}`{where}", ", ".join(changed)])


def _fields(config: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names, with a dot for those of nested dataclasses, and what is said of them."""
    comments = config_flags.comments(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _fields(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, comments.get(field.name, "")


def _get(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def run() -> None:
    """Writes the page."""
    with files.replacing(PAGE) as file:
        file.write(page())
    print(PAGE)


def main(argv: Sequence[str] = sys.argv) -> int:
    """Parses flags and writes the page; returns the exit code."""
    return cli.run_with(lambda _: run(), flags.FlagValues(), argv, __doc__)


if __name__ == "__main__":
    sys.exit(main())
