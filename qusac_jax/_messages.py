"""Wording that error messages share."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str], *, prefix: str = "") -> str:
    """The known names nearest to a mistyped one, as a clause for an error message.

    Args:
        name: what was given.
        known: what could have been meant.
        prefix: put before each suggestion, such as `dmc:`.

    Returns:
        For example " (did you mean 'mbpo'?)"; empty where nothing is near.
    """
    near = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(repr(prefix + match) for match in near)}?)" if near else ""
