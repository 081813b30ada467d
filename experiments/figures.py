"""Figures of deep runs: learning curves, one panel per task, and aggregates over tasks."""

import collections
import pathlib
import textwrap
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from experiments import files, results, run_reader, run_settings, style
from experiments.published_curves import PublishedCurve
from experiments.run_reader import Curve

_NO_BREAK = "\N{NO-BREAK SPACE}"
_SPELLED = 72  # letters of a line that spells settings out


class CurveStyle(NamedTuple):
    """How a curve is drawn."""

    name: str
    color: str
    letter: str  # of its settings
    line: Any


@matplotlib.rc_context(style.RC)
def draw_curves(
    curves: Sequence[Curve],
    path: pathlib.Path,
    *,
    x: str,
    y: str,
    published: Mapping[str, Sequence[PublishedCurve]] = types.MappingProxyType({}),
) -> list[results.Summary]:
    """Draws curves that were read, and returns what was drawn.

    Methods that cannot be averaged, because their seeds share no part of the x axis, are left out
    with a warning.

    Args:
        curves: of all tasks.
        path: of the PNG.
        x: name of the x axis.
        y: name of the y axis.
        published: by task, curves of others that are drawn thin and dotted, as far as `curves` go.

    Raises:
        ValueError: if nothing is left.
    """
    summaries = _summaries(results.group(curves))
    styles, spelled = curve_styles(curves)
    num_columns = min(len(summaries), 3)
    num_rows = -(-len(summaries) // num_columns)
    width = max(4.0 * num_columns, 5.5)
    lines_spelled = sum(1 + text.count("\n") for text in spelled.values())
    height = 2.9 * num_rows + 0.5 + 0.16 * lines_spelled / max(1, width // 6)
    figure = Figure((width, height), layout="constrained")
    panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for panel, (task, per_env) in zip(panels, summaries.items(), strict=False):
        _draw_panel(panel, task, per_env, styles, x)
        _draw_published(panel, published.get(task, ()), max(s.x[-1] for s in per_env))
    for panel in panels[len(summaries) :]:
        panel.set_visible(False)
    for panel in panels[::num_columns]:
        panel.set_ylabel(style.text(y.replace("_", " ")))
    drawn = [styles[s.task, s.label] for per_env in summaries.values() for s in per_env]
    colors = {curve_style.name: curve_style.color for curve_style in sorted(drawn)}
    methods = [style.line_sample(style.text(name), color=colors[name]) for name in colors]
    dotted = style.published_samples(c.name for theirs in published.values() for c in theirs)
    style.legend(figure, [*methods, *dotted], where="upper")
    if spelled:
        lines = {curve_style.letter: curve_style.line for curve_style in styles.values()}
        settings = [
            style.line_sample(f"{letter}   {text}", line=lines[letter], width=1.4)
            for letter, text in spelled.items()
        ]
        title = "settings in which runs of one method on one task differ"
        style.legend(figure, settings, where="lower", columns=max(1, int(width // 6)), title=title)
    style.save(figure, path)
    return [summary for per_env in summaries.values() for summary in per_env]


def curve_styles(
    curves: Sequence[Curve],
) -> tuple[dict[tuple[str, str], CurveStyle], dict[str, str]]:
    """Colours and lines of curves.

    A setting counts, for all curves, if runs of one method on one task differ in it. The commonest
    values of these settings together are `a`; where no run has all of them, `a` are those of the
    run nearest to that. Other letters are spelled out by what differs from `a`.

    Returns:
        By task and label how a curve is drawn, and by letter what its settings are; the latter is
        empty if there is nothing to tell apart.
    """
    colors = style.colors(curve.name for curve in curves)
    words = {  # by method on a task and setting, one per run
        (kind, name): [run_settings.describe(curve.settings, [name])[0] for curve in alike]
        for kind, alike in run_reader.by_kind(curves).items()
        for name in run_settings.differing([curve.settings for curve in alike])
    }
    names = sorted({name for _, name in words})
    commonest = {}
    for name in names:
        counts = collections.Counter(w for (_, n), each in words.items() if n == name for w in each)
        commonest[name] = min(
            counts, key=lambda word: (-counts[word], word.startswith("no "), word)
        )

    def described(curve: Curve) -> dict[str, str]:
        return dict(zip(names, run_settings.describe(curve.settings, names), strict=True))

    def differences() -> dict[tuple[str, str], tuple[str, ...]]:
        return {
            (curve.task, curve.label): tuple(
                word for name, word in described(curve).items() if word != commonest[name]
            )
            for curve in curves
        }

    special = differences()
    if () not in special.values():  # what is commonest one by one, no run has together
        nearest = min(curves, key=lambda curve: len(special[curve.task, curve.label]))
        commonest |= described(nearest)
        special = differences()
    num_runs = collections.Counter(special[curve.task, curve.label] for curve in curves)
    num_runs[()] = len(curves)
    ordered = sorted(num_runs, key=lambda key: (-num_runs[key], key))
    styles = {}
    for curve in curves:
        place = ordered.index(special[curve.task, curve.label])
        line = style.LINES[place % len(style.LINES)]
        color = colors[curve.name]
        styles[curve.task, curve.label] = CurveStyle(curve.name, color, style.letter(place), line)
    if not names:
        return styles, {}
    spelled = [list(commonest.values()), *([f"a, but {w[0]}", *w[1:]] for w in ordered[1:])]
    return styles, {style.letter(i): _wrapped(words) for i, words in enumerate(spelled)}


def _wrapped(words: Sequence[str]) -> str:
    """Settings as lines of a legend; what there is no room for is counted."""
    shown: list[str] = []
    for word in words:
        if len("   ".join([*shown, word])) > 4 * _SPELLED and shown:
            break
        shown.append(style.text(word, longest=_SPELLED))
    more = len(words) - len(shown)
    # What belongs together stays on one line.
    joined = [word.replace(" ", _NO_BREAK) for word in (*shown, *[f"and {more} more"] * bool(more))]
    lines = textwrap.wrap("   ".join(joined), _SPELLED)
    return "\n".join(lines).replace(_NO_BREAK, " ")


def _summaries(
    grouped: dict[str, dict[str, list[Curve]]],
) -> dict[str, list[results.Summary]]:
    """By task; what cannot be averaged is left out with a warning."""
    summaries: dict[str, list[results.Summary]] = {}
    problems = []
    for task, by_label in grouped.items():
        for curves in by_label.values():
            try:
                summaries.setdefault(task, []).append(results.summarize(curves))
            except ValueError as error:
                problems.append(str(error))
    summaries = {task: per_env for task, per_env in summaries.items() if per_env}
    if not summaries:
        raise ValueError("; ".join(problems))
    for problem in problems:
        files.warn(problem)
    return summaries


def _draw_panel(
    panel: Axes,
    task: str,
    summaries: list[results.Summary],
    styles: dict[tuple[str, str], CurveStyle],
    x: str,
) -> None:
    settings = {styles[summary.task, summary.label].letter for summary in summaries}
    for summary in summaries:
        curve_style = styles[summary.task, summary.label]
        marker = "o" if len(summary.x) == 1 else None
        panel.plot(
            summary.x,
            summary.mean,
            color=curve_style.color,
            linestyle=curve_style.line,
            marker=marker,
            lw=1.5,
        )
        if summary.num_seeds > 1:
            low = summary.mean - summary.standard_error
            high = summary.mean + summary.standard_error
            panel.fill_between(summary.x, low, high, color=curve_style.color, alpha=0.15, lw=0)
        if len(settings) > 1:
            end = (summary.x[-1], summary.mean[-1])
            panel.annotate(
                curve_style.letter,
                end,
                xytext=(3, 0),
                textcoords="offset points",
                color=curve_style.color,
                fontsize=8,
                va="center",
            )
    counts = sorted({summary.num_seeds for summary in summaries})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    panel.set_title(f"{style.text(task)} ({seeds} seed{'s' if seeds != '1' else ''})")
    panel.set_xlabel(style.text(x.replace("_", " ")))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_published(panel: Axes, curves: Sequence[PublishedCurve], end: float) -> None:
    for curve in curves:
        kept = curve.x <= end
        x, color = curve.x[kept], style.color(curve.name)
        panel.plot(x, curve.mean[kept], ":", color=color, lw=1.1, marker=".", ms=3.5)
        panel.fill_between(x, curve.least[kept], curve.most[kept], color=color, alpha=0.06, lw=0)


@matplotlib.rc_context({**style.RC, "axes.grid.axis": "x"})
def draw_aggregates(
    aggregates: list[results.Aggregate], names: Mapping[str, str], path: pathlib.Path
) -> None:
    """Draws statistics over tasks with their intervals, one panel per statistic.

    Args:
        aggregates: of all labels.
        names: `Curve.name` of each label, which decides the colour.
        path: of the PNG.
    """
    labels = list(dict.fromkeys(item.label for item in aggregates))
    colors = style.colors(names.values())
    order = [*style.COLORS, *colors]
    labels.sort(key=lambda label: (order.index(names[label]), label))
    statistics = list(dict.fromkeys(item.statistic for item in aggregates))
    figure = Figure((4.2 * len(statistics), 0.45 * len(labels) + 1.4), layout="constrained")
    panels = figure.subplots(1, len(statistics), sharey=True, squeeze=False)[0]
    for panel, statistic in zip(panels, statistics, strict=True):
        for item in aggregates:
            if item.statistic == statistic:
                row, color = labels.index(item.label), colors[names[item.label]]
                if item.num_seeds > 1:
                    width = item.high - item.low
                    panel.barh(row, width, 0.5, left=item.low, color=color, alpha=0.35)
                panel.plot([item.value] * 2, [row - 0.25, row + 0.25], color=color, lw=2.5)
        panel.use_sticky_edges = False  # a margin beside the bars too
        panel.autoscale_view()
        panel.set_title(statistic)
        panel.set_yticks(range(len(labels)), [style.text(label) for label in labels])
        panel.set_ylim(len(labels) - 0.5, -0.5)
    tasks = aggregates[0].num_tasks
    figure.supxlabel(f"normalized final return over {tasks} tasks, 95 % interval", fontsize=10)
    style.save(figure, path)
