"""How all figures look: colour by method, line by settings, legends that leave room for curves."""

import math
import os
import pathlib
import types
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from experiments import files

# Okabe & Ito's colours, told apart by nearly everybody, and a few more. A method has the same
# colour in every figure, whatever it is compared with.
COLORS: Mapping[str, str] = types.MappingProxyType(
    {
        "exact_ube": "#56B4E9",
        "pombu": "#E69F00",
        "ensemble_var": "#CC79A7",
        "psrl": "#7F7F7F",
        "upper_bound": "#0072B2",
        "moments": "#8C564B",
        "ensemble_mean": "#009E73",
        "mbpo": "#D55E00",
        "sac": "#000000",
        "disagreement": "#BCBD22",
        "information_gain": "#9467BD",
    }
)
# From the most to the least visible; a figure with more settings than that repeats them.
LINES: tuple[Any, ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (5, 1.5, 1, 1.5, 1, 1.5)),
    (0, (1, 3)),
    (0, (9, 2, 3, 2)),
)
# For matplotlib.rc_context, around all that draws or saves.
RC: Any = types.MappingProxyType(
    {
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 11,
        "font.size": 10,
        "grid.alpha": 0.3,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "savefig.dpi": 150,
    }
)


def colors(methods: Iterable[str]) -> dict[str, str]:
    """The colour of each method; known ones come first and always have the same one."""
    given = set(methods)
    known = [method for method in COLORS if method in given]
    unknown = sorted(given - set(known))
    free = [color for method, color in COLORS.items() if method not in given] or [*COLORS.values()]
    result = {method: COLORS[method] for method in known}
    return result | {method: free[i % len(free)] for i, method in enumerate(unknown)}


def color(method: str) -> str:
    """The colour of a published method, grey where it has none of its own."""
    return COLORS.get(method, "0.5")


def letter(index: int) -> str:
    """A short name for a setting: a, b, ..., z, a1, b1, ..."""
    lap, place = divmod(index, 26)
    return chr(ord("a") + place) + (str(lap) if lap else "")


def text(name: str, longest: int = 48) -> str:
    """A name as it can be drawn: short, and nothing in it has a meaning for matplotlib."""
    if len(name) > longest:
        name = f"{name[: longest // 2]}…{name[-longest // 2 :]}"
    name = name.replace("$", r"\$")
    return f" {name}" if name.startswith("_") else name


def line_sample(label: str, *, color: str = "black", line: Any = "-", width: float = 1.8) -> Line2D:
    """What a legend shows beside a label."""
    return Line2D([], [], color=color, linestyle=line, linewidth=width, label=label)


def published_samples(methods: Iterable[str]) -> list[Line2D]:
    """What a legend shows of published curves, which are dotted: each method once."""
    return [
        line_sample(f"published {method}", color=color(method), line=":")
        for method in dict.fromkeys(methods)
    ]


def legend(
    figure: Figure,
    handles: Sequence[Artist],
    *,
    where: Literal["upper", "lower"],
    columns: int = 0,
    title: str | None = None,
) -> Legend:
    """A legend of the whole figure, outside its panels.

    Args:
        figure: with constrained layout.
        handles: with labels.
        where: above or below the panels.
        columns: 0 for as many as fit.
        title: above the entries.
    """
    if not columns:  # a legend wider than its figure is cut off: about this many inches per entry
        entry = 0.6 + 0.075 * max(len(str(handle.get_label())) for handle in handles)
        columns = min(len(handles), max(1, int(figure.get_figwidth() / entry)))
        columns = math.ceil(len(handles) / math.ceil(len(handles) / columns))  # rows of one length
    place: Any = f"outside {where} center"
    return figure.legend(
        handles=handles,
        loc=place,
        ncols=columns,
        title=title,
        title_fontsize=9,
        fontsize=9 if title is None else 8,
        columnspacing=1.4,
        handletextpad=0.6,
        labelspacing=0.25,
    )


def check_path(path: str | os.PathLike[str]) -> None:
    """Raises `ValueError` unless `save` can write there, before the work that fills the figure."""
    suffix = pathlib.PurePath(path).suffix[1:]
    if suffix and suffix.lower() not in Figure().canvas.get_supported_filetypes():
        raise ValueError(f"path {str(path)!r} is no picture; let it end in .png, .pdf or .svg")
    files.check_writable(path)


def save(figure: Figure, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes a PNG, or what the name ends in, `replacing` the file; makes the folder.

    Returns:
        The path.
    """
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():  # letters that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph")
        with files.replacing(path, "wb", is_shared=True) as file:
            figure.savefig(file, format=path.suffix[1:] or "png")
    return path
