"""Markdown tables."""

from collections.abc import Collection, Iterable, Sequence


def row(cells: Iterable[object]) -> str:
    """One line of a table; a `|` inside a cell does not end it."""
    escaped = (str(cell).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def head(columns: Sequence[str], *, texts: Collection[str] = ()) -> str:
    """The first two lines of a table.

    Args:
        columns: their names.
        texts: those that hold words and stand on the left; others hold numbers.
    """
    if unknown := set(texts) - set(columns):
        raise ValueError(f"texts has {sorted(unknown)}, which are none of the columns")
    return "\n".join([row(columns), row("---" if name in texts else "---:" for name in columns)])
