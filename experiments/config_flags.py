"""Flags for the fields of a dataclass, such as `--config.discount`."""

import ast
import dataclasses
import inspect
import re
import types
import typing
from typing import Any

from absl import flags


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
    hints, said = typing.get_type_hints(type(config)), comments(type(config))
    for field in dataclasses.fields(config):
        flag_name, value = f"{name}.{field.name}", getattr(config, field.name)
        comment = said.get(field.name) or field.name.replace("_", " ")
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


def comments(config: type) -> dict[str, str]:
    """What is said of the fields of a dataclass behind them or in the lines before, by field."""
    try:
        lines = inspect.getsource(config).splitlines()
    except OSError:  # typed in, or frozen
        return {}
    found: dict[str, str] = {}
    before: list[str] = []
    for line in lines:
        if match := re.match(r"    # (.*)", line):
            before.append(match[1])
            continue
        if match := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line):
            found[match[1]] = match[2] or " ".join(before)
        before = []
    return found
