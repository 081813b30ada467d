"""What the command-line programs share: parsing, exit codes, devices, seeds."""

import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import flags, logging

from experiments import jax_settings
from experiments.retired import RETIRED
from qusac_jax._messages import did_you_mean

MAX_SEED = 2**31 - 1
# Sections of `--help`; those of modules that are not named are of the program.
_OF_PROGRAM = "this program"
_SECTIONS = {
    "experiments.jax_settings": "where and how JAX computes",
    "experiments.distributed": "several processes",
}


def run_with(
    run: Callable[..., int | None],
    options: flags.FlagValues,
    argv: Sequence[str],
    about: str | None,
    *,
    positional: str | None = None,
    pass_on: bool = False,
) -> int:
    """Parses a command line and runs a program with it; one process can run several.

    Orbax and JAX report every file and backend that they try: only errors are logged unless
    `--verbosity` asks for more.

    Args:
        run: the program, called with its flags and, where there are positional arguments, the list
            of them; returns the exit code, or None for 0.
        options: its flags, without `--help` and `--verbosity`, which are added here.
        argv: the command line, the program's name first.
        about: what `--help` says before the flags.
        positional: what the arguments that are not flags are; None if there are none. At least one
            must be given.
        pass_on: whether `run` is called with what of the command line is no flag of the program,
            too, for another program.

    Returns:
        The exit code: 2 after a mistake, which is one line on stderr; 130 after Ctrl-C.
    """
    define: dict[str, Any] = {"flag_values": options}
    flags.DEFINE_boolean("help", False, "print this text", short_name="h", **define)
    flags.DEFINE_integer(
        "verbosity", -2, "log: -2 errors, -1 warnings too, 0 all, 1 more", **define
    )

    def parsed() -> int | None:
        arguments = parse(options, argv, known_only=pass_on)
        if options.help:
            print(f"{about or ''}{_help(options)}")
            return 0
        logging.use_absl_handler()
        logging.set_verbosity(options.verbosity)
        jax_settings.apply(options)
        if pass_on:
            return run(options, arguments)
        if positional is None and arguments:
            raise ValueError(f"arguments {arguments} are not flags; flags look like --name=value")
        if positional is None:
            return run(options)
        if not arguments:
            raise ValueError(f"arguments are missing: {positional}; --help tells more")
        return run(options, arguments)

    return _written_out(_exit_code(parsed))


def parse(
    options: flags.FlagValues,
    argv: Sequence[str],
    *,
    known_only: bool = False,
    also: Sequence[str] = (),
    listed_by: str = "--help lists",
) -> list[str]:
    """Parses a command line, flags and positional arguments in any order.

    Args:
        options: the program's flags.
        argv: the command line, the program's name first.
        known_only: whether flags that are not among `options` are left for others.
        also: names of flags that may be meant as well.
        listed_by: what a message about an unknown flag says of where the known ones are.

    Returns:
        What is left: positional arguments, and unknown flags with `known_only`.

    Raises:
        ValueError: for an unknown flag otherwise.
    """
    options.set_gnu_getopt(True)
    try:
        return options(argv, known_only=known_only)[1:]
    except flags.UnrecognizedFlagError as error:
        known = list(dict.fromkeys([*options, *also]))
        raise ValueError(_unknown_flag(error.flagname, known, listed_by)) from error


def _help(options: flags.FlagValues) -> str:
    """What `--help` says about the flags; those of the program itself come first.

    absl has a section for each module that defines flags, which tells a user nothing.
    """
    sections: dict[str, list[str]] = {name: [] for name in (_OF_PROGRAM, *_SECTIONS.values())}
    for section in re.split(r"\n(?=\S)", options.get_help().strip()):
        heading, _, text = section.partition(":\n")
        is_module = heading == sys.argv[0] or re.fullmatch(r"\w+(\.\w+)+", heading)
        if is_module and heading != "absl.flags":
            heading = _SECTIONS.get(heading, _OF_PROGRAM)
        sections.setdefault(heading, []).extend(re.split(r"\n(?=  -)", text.rstrip()))
    name = lambda text: re.sub(r"^  (-h,)?--(\[no\])?", "", text)
    return "".join(
        f"\n{heading}:\n" + "\n".join(sorted(texts, key=name)) + "\n"
        for heading, texts in sections.items()
        if texts
    )


def _unknown_flag(name: str, known: list[str], listed_by: str) -> str:
    """What is wrong with a flag that is not among the known ones."""
    group = name.partition(".")[0]
    inside = [flag for flag in known if flag.startswith(f"{group}.")]
    if not inside:
        near = did_you_mean(name, known, prefix="--")
        return f"--{name} is no flag{near}; {listed_by} them"
    fields = [flag for flag in inside if flag.startswith(f"{name.rstrip('.')}.")]
    if fields:
        return f"--{name} names no single hyperparameter; use one such as --{fields[0]}"
    retired = name.removeprefix("config.")
    if retired in RETIRED:
        return f"--{name} is gone: runs are as with {RETIRED[retired]!r}; leave it out"
    near = did_you_mean(name, inside, prefix="--")
    return f"--{name} is no hyperparameter{near}; {listed_by} them"


def _exit_code(main: Callable[[], int | None]) -> int:
    """Of a program: 2 after a mistake, which is one line on stderr; 130 after Ctrl-C."""
    try:
        return main() or 0
    except (ValueError, flags.Error, OSError) as error:
        print(f"error: {_said_of(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _written_out(code: int) -> int:
    """The exit code, once all that was printed is written: 2 where it should be 0 and is not."""
    output = sys.stdout
    if output is None:  # it was closed
        return code
    try:
        output.flush()
    except OSError as error:
        # Python flushes once more at its end, and would leave with a code and lines of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        if code == 0:
            print(f"error: {_said_of(error)}", file=sys.stderr)
            return 2
    return code


def _said_of(error: Exception) -> str:
    """What a mistake says; with a remedy where a stream, which has no name, takes no more."""
    takes_no_more = (errno.ENOSPC, errno.EPIPE)
    if isinstance(error, OSError) and error.errno in takes_no_more and not error.filename:
        return f"the output cannot be written ({error.strerror}); send it elsewhere"
    return str(error)


def select_device(kind: str) -> list[Any]:
    """The devices of that kind in this process, which become JAX's default ones.

    Args:
        kind: cpu, gpu, tpu, or auto for the best there is.

    Raises:
        ValueError: if there is none.
    """
    if kind != "auto":
        # Evaluations act on the CPU, wherever a run learns.
        platforms = {"gpu": "cuda,cpu", "tpu": "tpu,cpu"}
        jax.config.update("jax_platforms", platforms.get(kind, kind))
    missing = (
        f"device {kind!r} is not there or its jax plugin is not installed; use --device=cpu, "
        "or install the extra 'cuda' or 'tpu'"
    )
    try:
        devices = jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # the latter from jax without any plugin
        raise ValueError(missing) from error
    if kind != "auto" and devices[0].platform != kind:  # of several platforms, one is enough to JAX
        raise ValueError(missing)
    return devices


def check_seeds(first: int, num_seeds: int) -> None:
    """Raises `ValueError` if one of the seeds from the first on is too large."""
    last = first + num_seeds - 1
    if last > MAX_SEED:
        raise ValueError(f"seed + num_seeds - 1 must be below 2**31, got {last}; use smaller seeds")


def integers(name: str, texts: Sequence[str]) -> list[int]:
    """The value of a flag that is a list of integers.

    Raises:
        ValueError: if one of them is none.
    """
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise ValueError(f"{name} must be integers separated by commas, got {texts}") from None


def check_distinct(name: str, values: Sequence[Any]) -> None:
    """Raises `ValueError` if something is twice in the value of a flag that is a list."""
    repeated = sorted({value for value in values if list(values).count(value) > 1})
    if repeated:
        raise ValueError(f"{name}: {repeated[0]!r} is given twice; leave one out")
