"""What the command-line programs share: exit codes, devices, signals, compilations."""

import collections
import contextlib
import dataclasses
import difflib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import jax
import ml_collections
from absl import app, flags, logging
from ml_collections import config_dict as config_dict_lib
from ml_collections import config_flags


def run(main: Callable[[], int | None]) -> None:
    """Runs a program: mistakes in flags and values end it with code 2 and no traceback."""

    def parse(argv: Sequence[str]) -> list[str]:
        try:
            return flags.FLAGS(argv)
        except (flags.Error, ValueError, TypeError) as error:
            _fail(error)
        except SystemExit:  # absl calls it a mistake to ask for --help
            sys.exit(0)

    def guarded(argv: Sequence[str]) -> int | None:
        # Orbax and JAX report every file and backend that they try; --verbosity=0 shows that.
        if not flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.ERROR)
        if len(argv) > 1:
            _fail(ValueError(f"arguments {argv[1:]} are not flags; flags look like --env=pendulum"))
        return _exit_code(main)

    app.run(guarded, flags_parser=parse)


def run_with(
    main: Callable[[], int | None], options: flags.FlagValues, argv: Sequence[str], about: str
) -> int:
    """`run` for a program with flags of its own, which several programs of one process can have.

    Args:
        main: returns the exit code, or None for 0.
        options: without `--help`, which is added here.
        argv: the command line.
        about: what `--help` says before the flags.

    Returns:
        The exit code: 2 after a mistake, which is one line on stderr; 130 after Ctrl-C.
    """
    flags.DEFINE_boolean("help", False, "Print this text.", short_name="h", flag_values=options)

    def parsed() -> int | None:
        extra = options(argv)[1:]
        if options.help:
            print(f"{about}{options.get_help()}")
            return 0
        if extra:
            raise ValueError(f"arguments {extra} are not flags; flags look like --name=value")
        return main()

    return _exit_code(parsed)


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


def _fail(error: Exception) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def select_device(kind: str) -> list[Any]:
    """The devices of that kind, which become JAX's only ones.

    Args:
        kind: cpu, gpu, tpu, or auto for the best there is.

    Raises:
        ValueError: if there is none.
    """
    if kind != "auto":
        jax.config.update("jax_platforms", {"gpu": "cuda"}.get(kind, kind))
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the latter from jax without any plugin
        raise ValueError(
            f"device {kind!r} is not there or its jax plugin is not installed; use --device=cpu, "
            "or install the extra 'cuda' or 'tpu'"
        ) from error


class CompilationCounter:
    """How often XLA compiled each jitted function, from when it is made."""

    def __init__(self) -> None:
        """Listens to JAX from now on."""
        self._counts: collections.Counter[str] = collections.Counter()
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def __getitem__(self, name: str) -> int:
        """Of the functions of that name."""
        return self._counts[f"jit({name})"]

    def _note(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        del duration_secs
        if event == "/jax/core/compile/backend_compile_duration":
            self._counts[str(kwargs.get("fun_name"))] += 1


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], int | None]]:
    """Within it, Ctrl-C and SIGTERM are noted and answered; a second Ctrl-C raises.

    Yields:
        A function that returns the number of the signal that came, or None.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not received:
            with contextlib.suppress(OSError):  # not print, which the signal may interrupt
                os.write(2, b"\nstopping and saving; Ctrl-C again leaves without saving\n")
        received.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def define_config(name: str, config: Any, about: str) -> None:
    """Defines `--NAME.FIELD` flags for the fields of a dataclass.

    Called when a program is imported, before `run` can catch anything: `ml_collections` looks at
    the command line at once. A field that does not exist, or a tuple given twice (its values would
    be joined), ends the program with code 2.

    Args:
        name: of the group of flags.
        config: a dataclass with the defaults.
        about: what `--help` says.
    """
    known = [field.name for field in dataclasses.fields(config)]
    given: list[str] = []
    for argument in sys.argv[1:]:
        match = re.match(rf"--?(?:no)?{name}\.(\w+)", argument)
        if match is None:
            continue
        field = match[1]
        if field not in known:
            close = difflib.get_close_matches(field, known)
            near = f" (near: {', '.join(close)})" if close else ""
            _fail(ValueError(f"--{name}.{field} is no hyperparameter{near}; see Config"))
        if field in given and isinstance(getattr(config, field), tuple):
            _fail(ValueError(f"--{name}.{field} is given twice; leave one out"))
        given.append(field)
    config_flags.DEFINE_config_dict(name, _config_dict(config), about)


def _config_dict(config: Any) -> ml_collections.ConfigDict:
    content = ml_collections.ConfigDict(dataclasses.asdict(config))
    for field in dataclasses.fields(config):
        if getattr(config, field.name) is None:
            content[field.name] = config_dict_lib.placeholder(float)
    return content
