"""Checksums of the files in a directory: TensorStore notices most damage, but late and not all."""

import json
import pathlib
import zlib

_FILE = "checksums.json"
_MOST_NAMED = 3
_BLOCK = 2**24  # bytes that are read at once; the file of a large state has gigabytes


def write(directory: pathlib.Path) -> None:
    """Writes the checksums of all files that are there; the last thing that a writer does."""
    partial = directory / (_FILE + ".partial")
    partial.write_text(json.dumps(_compute(directory), indent=1))
    partial.rename(directory / _FILE)


def is_there(directory: pathlib.Path) -> bool:
    """Whether the directory has checksums."""
    return (directory / _FILE).is_file()


def changed(directory: pathlib.Path) -> str:
    """The first few files that are not what was written, or not there any more, in words.

    Empty if there are none, or no checksums.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if the checksums themselves are damaged.
    """
    if not is_there(directory):
        return ""
    path = directory / _FILE
    try:
        expected = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{_FILE} cannot be read: {error}") from error
    if not isinstance(expected, dict):
        raise ValueError(f"{_FILE} cannot be read: it is not a JSON object")
    found = _compute(directory)
    wrong = [name for name, checksum in expected.items() if found.get(name) != checksum]
    return ", ".join(wrong[:_MOST_NAMED])


def _compute(directory: pathlib.Path) -> dict[str, int]:
    files = sorted(f for f in directory.rglob("*") if f.is_file() and f.name != _FILE)
    return {str(f.relative_to(directory)): _crc32(f) for f in files}


def _crc32(path: pathlib.Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum
