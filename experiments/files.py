"""Reads, checks and replaces files; what is wrong with one is an error of one line."""

import contextlib
import csv
import io
import json
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

import numpy as np

from experiments import interrupts

_REMEDY = "leave this run out"  # of those that are drawn together


def read_json(path: pathlib.Path, remedy: str = _REMEDY) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: if there is none, naming the file, the cause and the remedy.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read ({error}); {remedy}") from error
    return content


def read_count(path: pathlib.Path, name: str, remedy: str) -> int:
    """A whole number of a JSON object, 0 where it is missing.

    Raises:
        ValueError: if it cannot be read, or is something else.
    """
    value = read_json(path, remedy).get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{path}: {name} is {value!r}, which is no whole number; {remedy}")
    return value


def read_columns(
    path: pathlib.Path,
    wanted: Iterable[str] | None = None,
    *,
    size: int | None = None,
    remedy: str = _REMEDY,
) -> dict[str, np.ndarray]:
    """Columns of numbers of a CSV file; empty ones where there is no file yet.

    A last line without its end, as a run has that was killed or is writing, is left out.

    Args:
        path: the file.
        wanted: names of columns; None for all that there are.
        size: bytes from the beginning that are read; None for all.
        remedy: what to do about a damaged file, for the message.

    Raises:
        ValueError: if a column is missing or something is no number, naming file and line.
    """
    wanted = None if wanted is None else set(wanted)
    try:
        text = path.read_bytes()[:size].decode() if path.is_file() else ""
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}); {remedy}") from error
    complete = text[: text.rfind("\n") + 1]
    rows = csv.reader(io.StringIO(complete))
    try:
        header = next(rows, None)
        if header is None:
            return {name: np.zeros(0) for name in wanted or ()}
        return _parse(path, header, rows, set(header) if wanted is None else wanted, remedy)
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file ({error}); {remedy}") from error


def _parse(
    path: pathlib.Path,
    header: list[str],
    rows: Iterable[list[str]],
    wanted: set[str],
    remedy: str,
) -> dict[str, np.ndarray]:
    missing = sorted(wanted - set(header))
    if missing:
        there = ", ".join(map(plain, header))
        raise ValueError(f"{path} has no column {', '.join(missing)}; it has {there}")
    indices = {name: header.index(name) for name in wanted}
    values: dict[str, list[float]] = {name: [] for name in wanted}
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(
                f"{path} has {len(row)} values in line {number} and {len(header)} columns; "
                f"the file is damaged, {remedy}"
            )
        for name, index in indices.items():
            try:
                values[name].append(float(row[index] or "nan"))
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {number}: {name} is {row[index][:40]!r}, which is no number; "
                    f"the file is damaged, {remedy}"
                ) from error
    return {name: np.array(column) for name, column in values.items()}


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with keys such as `config.risk`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def as_name(text: str) -> str:
    """An environment's name, such as `gym:Pendulum-v1`, in a form that a file name can have."""
    return re.sub(r"[^\w.+-]", "_", text)


def plain(text: str) -> str:
    """The text with what cannot be printed or encoded replaced by question marks."""
    return "".join(character if character.isprintable() else "?" for character in text)


def warn(message: str) -> None:
    """Prints a line on stderr."""
    print(f"warning: {message}", file=sys.stderr)


@contextlib.contextmanager
def replacing(path: pathlib.Path, mode: str = "w", *, is_shared: bool = False) -> Iterator[IO[Any]]:
    """A file to write to, which takes the place of the one at the path when it is complete.

    What is there stays as it is if anything goes wrong before, be it a full disk or kill -9; after
    Ctrl-C nothing of the new one stays. A link stays one; what is no file, such as /dev/null, is
    written to.

    Args:
        path: of the file.
        mode: as for `open`: w or wb.
        is_shared: whether other processes may replace it at the same time.
    """
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    if path.exists() and not path.is_file():
        with path.open(mode, **text) as file:
            yield file
        return
    path = path.resolve() if path.is_symlink() else path
    partial = path.with_suffix(f".{os.getpid()}.partial" if is_shared else ".partial")
    with interrupts.unfinished(partial):
        try:
            with partial.open(mode, **text) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException as error:  # what is there of it takes room, too
            partial.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno and not error.filename:  # of writing
                raise OSError(
                    f"{path} could not be written ({error.strerror}); free some space, or choose "
                    "another place"
                ) from error
            raise
        partial.rename(path)


def write_csv(path: pathlib.Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a table as CSV, `replacing` the file."""
    with replacing(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def write_json(path: pathlib.Path, content: Any) -> None:
    """Writes a value as JSON, `replacing` the file."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=2) + "\n")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises `ValueError` unless a file can be written there, before the work that fills it.

    Makes the folder that it lies in.
    """
    path = pathlib.Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.stat()  # to `exists`, a link that leads to itself is nothing that is there
        if path.exists():
            path.open("ab").close()
        if path.is_file() or not path.exists():  # it is written beside, see `replacing`
            tempfile.TemporaryFile(dir=path.resolve().parent).close()
    except OSError as error:
        raise ValueError(
            f"output {str(path)!r} cannot be written ({why(error)}); choose another"
        ) from error


def why(error: OSError) -> str:
    """What the system says, and of a path that leads through a file, which one that is."""
    if isinstance(error, (FileExistsError, NotADirectoryError)) and error.filename:
        there = pathlib.Path(error.filename)
        for path in (there, *there.parents):
            if path.is_file():
                return f"{path} is a file, no folder"
    return error.strerror or str(error)
