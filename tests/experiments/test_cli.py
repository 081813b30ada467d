"""Command lines: mistakes are one line and code 2, hyperparameters are flags, nested ones too."""

import dataclasses
import os
import signal
import sys
from typing import Any, Literal

import pytest
from absl import flags, logging

from experiments import cli, config_file, config_flags


@dataclasses.dataclass(frozen=True)
class Inner:
    hidden: tuple[int, ...] = (8, 8)  # layers; of the model
    decay: float = 0.5

    def __post_init__(self):
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {self.decay}")


@dataclasses.dataclass(frozen=True)
class Outer:
    method: Literal["this", "that"] = "this"  # which of the two
    risk: float = 1.0
    # How many there are, at
    # most.
    count: int = 3

    clip: bool = True
    entropy: float | None = None  # None: chosen by size
    weights: tuple[float, ...] = (0.5,)
    model: Inner = Inner()


def run(*arguments: str, base: Outer | None = None, **options: Any):
    """The exit code, the dataclass with what they give, and the positional arguments."""
    values, seen = flags.FlagValues(), []
    flags.DEFINE_integer("num_steps", 5, "Steps.", flag_values=values)
    config_flags.define_config(values, "config", Outer(), "hyperparameters")

    def main(_: flags.FlagValues, *positional: list[str]) -> None:
        given = config_flags.given_fields(values, "config")
        seen.extend([config_file.replaced(base or Outer(), given), *positional])

    code = cli.run_with(main, values, ["program", *arguments], "About it.\n", **options)
    return code, *seen


@pytest.mark.parametrize(
    ("argument", "change"),
    [
        ("--config.risk=-2", {"risk": -2.0}),
        ("--config.risk=1e-3", {"risk": 1e-3}),
        ("--config.count=7", {"count": 7}),
        ("--config.method=that", {"method": "that"}),
        ("--config.clip=false", {"clip": False}),
        ("--noconfig.clip", {"clip": False}),
        ("--config.entropy=-3", {"entropy": -3.0}),
        ("--config.weights=(1, 0.25)", {"weights": (1.0, 0.25)}),
        ("--config.model.hidden=(128,128)", {"model": Inner(hidden=(128, 128))}),
        ("--config.model.hidden=[128]", {"model": Inner(hidden=(128,))}),
        ("--config.model.hidden=128", {"model": Inner(hidden=(128,))}),
        ("--config.model.hidden=()", {"model": Inner(hidden=())}),
    ],
)
def test_a_field_is_a_flag(argument, change):
    assert run(argument) == (0, dataclasses.replace(Outer(), **change))


def test_only_what_is_given_replaces_what_the_base_has():
    base = Outer(risk=4.0, entropy=-1.0, model=Inner((3,), 0.25))
    assert run(base=base) == (0, base)
    code, config = run("--config.entropy=None", "--config.model.decay=0.5", base=base)
    assert code == 0
    assert config == Outer(risk=4.0, entropy=None, model=Inner((3,), 0.5))  # also a default


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.reset_every=5"], "--config.reset_every is gone: runs are as with 0; leave it"),
        (["--config.risks=1"], "--config.risks is no hyperparameter (did you mean '--config.risk'"),
        (["--config.model_hidden=3"], "did you mean '--config.model.hidden'"),
        (["--config.model.depth=3"], "--config.model.depth is no hyperparameter"),
        (["--config.=3"], "--config. names no single hyperparameter; use one such as --config."),
        (["--config=3"], "--config names no single hyperparameter"),
        (["--config.model=3"], "use one such as --config.model."),
        (["--config.count=3.5"], "--config.count=3.5: must be an integer"),
        (["--config.count=True"], "--config.count=True: must be an integer"),
        (["--config.entropy=low"], "--config.entropy=low: must be a number or None"),
        (["--config.model.hidden=(True,8)"], "must be a tuple of integers such as (256,256)"),
        (["--config.model.hidden=(8,0.5)"], "must be a tuple of integers"),
        (["--config.model.hidden=("], "must be a tuple of integers"),
        (["--config.model.hidden=True"], "must be a tuple of integers"),
        (["--config.clip=maybe"], "--config.clip=maybe"),
        (["--config.model.hidden=8", "--config.model.hidden=9"], "config.model.hidden is given tw"),
        (["--config.model.decay=1"], "decay must lie in [0, 1), got 1.0"),
        (["--num_step=3"], "--num_step is no flag (did you mean '--num_steps'?)"),
        (["--num_steps=3.5"], "num_steps"),
        (["--flagfile=/nowhere/at/all"], "/nowhere/at/all"),
        (["here"], "arguments ['here'] are not flags"),
    ],
)
def test_mistakes_are_one_line_and_code_2(arguments, message, capsys):
    assert run(*arguments) == (2,)
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_help_shows_every_hyperparameter_with_default_and_comment(capsys):
    assert run("--help") == (0,)
    text = capsys.readouterr().out
    assert text.startswith("About it.\n")
    assert "hyperparameters:" in text
    assert "--config.method: which of the two\n    (default: 'this')\n    (<this|that>)" in text
    assert "--config.model.hidden: layers; of the model\n    (default: '(8, 8)')" in text
    assert "--config.count: How many there are, at most.\n    (default: '3')" in text
    assert "--[no]config.clip" in text
    assert "--config.entropy: None: chosen by size" in text
    assert "--num_steps" in text


def test_positional_arguments_may_stand_before_and_after_flags(capsys):
    runs = {"positional": "run directories"}
    assert run("a", "--config.count=4", "b", **runs) == (0, Outer(count=4), ["a", "b"])
    assert run(**runs) == (2,)
    assert "arguments are missing: run directories" in capsys.readouterr().err


def test_libraries_log_errors_only_unless_asked():
    run()
    assert logging.get_verbosity() == logging.ERROR
    run("--verbosity=0")
    assert logging.get_verbosity() == logging.INFO
    run()


@pytest.mark.parametrize(
    ("raised", "code"), [(OSError("full"), 2), (KeyboardInterrupt(), 128 + signal.SIGINT)]
)
def test_exit_codes(raised, code, capsys):
    def main(_):
        raise raised

    assert cli.run_with(main, flags.FlagValues(), ["program"], "") == code
    assert capsys.readouterr().err.count("\n") == 1
    assert cli.run_with(lambda _: 7, flags.FlagValues(), ["program"], "") == 7


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(("code", "flush"), [(0, False), (1, False), (0, True)])
def test_what_cannot_be_printed_is_a_mistake_if_nothing_else_was(code, flush, monkeypatch, capsys):
    def main(_):
        print("a table", flush=flush)
        return code

    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert cli.run_with(main, flags.FlagValues(), ["program"], "") == (code or 2)
        full.flush()  # as Python does at its end
    said = "error: the output cannot be written (No space left on device); send it elsewhere\n"
    assert capsys.readouterr().err == ("" if code else said)


def test_the_largest_seed_is_one():
    cli.check_seeds(cli.MAX_SEED, 1)
    cli.check_seeds(cli.MAX_SEED - 4, 5)
    with pytest.raises(ValueError, match=f"got {cli.MAX_SEED + 1}; use smaller seeds"):
        cli.check_seeds(cli.MAX_SEED - 4, 6)
