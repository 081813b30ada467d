"""What the command-line programs share: exit codes, devices, signals, compilations."""

import ast
import collections
import contextlib
import dataclasses
import inspect
import os
import re
import signal
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import jax
from absl import flags, logging

from experiments import jax_settings
from qusac_jax._messages import did_you_mean

MAX_SEED = 2**31 - 1


def run_with(
    main: Callable[..., int | None],
    options: flags.FlagValues,
    argv: Sequence[str],
    about: str,
    *,
    positional: str | None = None,
    pass_on: bool = False,
) -> int:
    """Parses a command line and runs a program with it; one process can run several.

    Orbax and JAX report every file and backend that they try: only errors are logged unless
    `--verbosity` asks for more.

    Args:
        main: returns the exit code, or None for 0. Where there are positional arguments, it is
            called with the list of them, otherwise with nothing.
        options: the program's flags, without `--help` and `--verbosity`, which are added here.
        argv: the command line, the program's name first.
        about: what `--help` says before the flags.
        positional: what the arguments that are not flags are; None if there are none. At least one
            must be given.
        pass_on: whether `main` is called with what of the command line is no flag of the program,
            for another program.

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
            print(f"{about}{_help(options)}")
            return 0
        logging.use_absl_handler()
        logging.set_verbosity(options.verbosity)
        jax_settings.apply(options)
        if pass_on:
            return main(arguments)
        if positional is None and arguments:
            raise ValueError(f"arguments {arguments} are not flags; flags look like --name=value")
        if positional is None:
            return main()
        if not arguments:
            raise ValueError(f"arguments are missing: {positional}; --help tells more")
        return main(arguments)

    return _exit_code(parsed)


def parse(options: flags.FlagValues, argv: Sequence[str], *, known_only: bool = False) -> list[str]:
    """Parses a command line, flags and positional arguments in any order.

    Args:
        options: the program's flags.
        argv: the command line, the program's name first.
        known_only: whether flags that are not among `options` are left for others.

    Returns:
        What is left: positional arguments, and unknown flags with `known_only`.

    Raises:
        ValueError: for an unknown flag otherwise.
    """
    options.set_gnu_getopt(True)
    try:
        return options(argv, known_only=known_only)[1:]
    except flags.UnrecognizedFlagError as error:
        raise ValueError(_unknown_flag(error.flagname, list(options))) from error


def _help(options: flags.FlagValues) -> str:
    """What `--help` says about the flags; those of the program itself come first."""
    return options.get_help().replace(f"\n{sys.argv[0]}:\n", "\nthis program:\n", 1)


def _unknown_flag(name: str, known: list[str]) -> str:
    """What is wrong with a flag that is not among the known ones."""
    group = name.partition(".")[0]
    inside = [flag for flag in known if flag.startswith(f"{group}.")]
    if not inside:
        near = did_you_mean(name, known, prefix="--")
        return f"--{name} is no flag{near}; --help lists them"
    fields = [flag for flag in inside if flag.startswith(f"{name.rstrip('.')}.")]
    if fields:
        return f"--{name} names no single hyperparameter; use one such as --{fields[0]}"
    near = did_you_mean(name, inside, prefix="--")
    return f"--{name} is no hyperparameter{near}; --help lists them"


def _exit_code(main: Callable[[], int | None]) -> int:
    """Of a program: 2 after a mistake, which is one line on stderr; 130 after Ctrl-C."""
    try:
        return main() or 0
    except (ValueError, flags.Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def select_device(kind: str) -> list[Any]:
    """The devices of that kind in this process, which become JAX's only ones.

    Args:
        kind: cpu, gpu, tpu, or auto for the best there is.

    Raises:
        ValueError: if there is none.
    """
    if kind != "auto":
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(kind, kind))
    try:
        return jax.local_devices()
    except (RuntimeError, AssertionError) as error:  # the latter from jax without any plugin
        raise ValueError(
            f"device {kind!r} is not there or its jax plugin is not installed; use --device=cpu, "
            "or install the extra 'cuda' or 'tpu'"
        ) from error


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


class CompilationCounter:
    """How often XLA compiled each jitted function, from when it is made."""

    def __init__(self) -> None:
        """Listens to JAX from now on."""
        self._counts: collections.Counter[str] = collections.Counter()
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def __getitem__(self, name: str) -> int:
        """Of the functions of that name."""
        return self._counts[f"jit({name})"]

    @property
    def total(self) -> int:
        """Of all functions."""
        return self._counts.total()

    def _note(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            self._counts[str(kwargs.get("fun_name"))] += 1


@contextlib.contextmanager
def stop_signals(when: str = "") -> Iterator[Callable[[], int | None]]:
    """Within it, Ctrl-C and SIGTERM are noted and answered; a second Ctrl-C does as outside.

    Args:
        when: how soon the program stops, for the line that says it will.

    Yields:
        A function that returns the number of the signal that came, or None.
    """
    received: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    outside = handler if callable(handler) else signal.default_int_handler
    message = f"\nstopping and saving{when}; Ctrl-C again leaves without saving\n".encode()

    def note(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            outside(number, frame)
        if not received:
            with contextlib.suppress(OSError):  # not print, which the signal may interrupt
                os.write(2, message)
        received.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def define_config(options: flags.FlagValues, name: str, config: Any, about: str) -> None:
    """Defines a `--NAME.FIELD` flag for every field of a dataclass, nested ones included.

    The flags' help is the comment behind the field, or else the one before it.

    Args:
        options: where the flags are added.
        name: of the group of flags.
        config: a dataclass with the defaults. Its fields are numbers, strings, booleans, tuples of
            numbers, None in place of a number, or such dataclasses again.
        about: heading of these flags in `--help`.
    """
    hints, comments = typing.get_type_hints(type(config)), _comments(type(config))
    for field in dataclasses.fields(config):
        flag_name, value = f"{name}.{field.name}", getattr(config, field.name)
        comment = comments.get(field.name) or field.name.replace("_", " ")
        if dataclasses.is_dataclass(value):
            define_config(options, flag_name, value, about)
            continue
        if hints[field.name] is bool:
            flag = flags.BooleanFlag(flag_name, value, comment)
        else:
            parser = _FieldParser(hints[field.name])
            serializer: flags.ArgumentSerializer = flags.ArgumentSerializer()
            flag = _FieldFlag(parser, serializer, flag_name, value, comment)
        flags.DEFINE_flag(flag, options, module_name=about)


def given_fields(options: flags.FlagValues, name: str) -> dict[str, Any]:
    """What the command line says of a dataclass, by field; names of nested ones have dots.

    Args:
        options: parsed, and once given to `define_config`.
        name: of the group of flags.
    """
    prefix = f"{name}."
    return {
        flag.removeprefix(prefix): options[flag].value
        for flag in options
        if flag.startswith(prefix) and options[flag].present
    }


class _FieldParser(flags.ArgumentParser):
    """Parses the value of a field from its annotation."""

    def __init__(self, hint: Any):
        """For a field of that type: int, float, str, Literal, tuple[int, ...] or `... | None`."""
        super().__init__()
        alternatives = typing.get_args(hint) if _is_union(hint) else (hint,)
        self._optional = type(None) in alternatives
        (self._type,) = (kind for kind in alternatives if kind is not type(None))
        self._element = None
        if typing.get_origin(self._type) is tuple:
            self._element = typing.get_args(self._type)[0]
        if typing.get_origin(self._type) is typing.Literal:
            self.syntactic_help = f"<{'|'.join(map(str, typing.get_args(self._type)))}>"

    def parse(self, argument: Any) -> Any:
        """The value; one that is no text is a default, and stays as it is."""
        if not isinstance(argument, str):
            return argument
        if self._optional and argument.lower() == "none":
            return None
        if self._element is not None:
            return _parse_tuple(argument, self._element)
        if self._type in (int, float):
            try:
                return self._type(argument)
            except ValueError:
                kind = "an integer" if self._type is int else "a number"
                either = " or None" if self._optional else ""
                raise ValueError(f"must be {kind}{either}") from None
        return argument


class _FieldFlag(flags.Flag):
    """A flag whose tuple cannot be given twice, as one might expect the two to be joined."""

    def parse(self, argument: Any) -> None:
        """Notes the value that the command line gives."""
        if self.present and isinstance(self.default, tuple):
            raise flags.IllegalFlagValueError(f"--{self.name} is given twice; leave one out")
        super().parse(argument)


def _parse_tuple(text: str, element: type) -> tuple:
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        values = None
    if isinstance(values, int | float):
        values = (values,)
    allowed = (int, float) if element is float else element
    if isinstance(values, tuple | list) and all(
        isinstance(value, allowed) and not isinstance(value, bool) for value in values
    ):
        return tuple(element(value) for value in values)
    kind = "integers" if element is int else "numbers"
    raise ValueError(f"must be a tuple of {kind} such as (256,256)")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (types.UnionType, typing.Union)


def _comments(config: type) -> dict[str, str]:
    """What is said of the fields of a dataclass behind them or in the lines before, by field."""
    try:
        lines = inspect.getsource(config).splitlines()
    except OSError:  # typed in, or frozen
        return {}
    comments: dict[str, str] = {}
    before: list[str] = []
    for line in lines:
        if match := re.match(r"    # (.*)", line):
            before.append(match[1])
            continue
        if match := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line):
            comments[match[1]] = match[2] or " ".join(before)
        before = []
    return comments
