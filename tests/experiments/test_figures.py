"""Figures: colours, lines and letters of methods and their settings."""

import numpy as np
import pytest

from experiments import figures, plot, published_curves, results, run_reader, style
from tests.run_files import change_config, rows_for, write_run


def test_settings_that_have_no_room_are_counted():
    words = [f"hyperparameter_{i}={i}" for i in range(40)]
    text = figures._wrapped(words)
    shown = [word for word in words if word in text.split()]
    assert shown == words[: len(shown)]
    assert text.replace("\n", " ").endswith(f"and {40 - len(shown)} more")
    assert len(shown) > 8
    assert "more" not in figures._wrapped(words[:3])


def test_learning_curves_of_one_run(tmp_path):
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [5.0]))
    curves = run_reader.read_runs([run])
    figures.draw_curves(curves, tmp_path / "curve.png", x="step", y="eval_return")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_a_band_is_a_standard_error_wide_and_published_curves_end_with_the_runs(
    tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(figures.style, "save", lambda figure, path: drawn.append(figure))
    rows = rows_for([0, 1], [100.0, 300.0], (0, 30_000))
    curves = run_reader.read_runs([write_run(tmp_path / "a", "pendulum", "pombu", rows)])
    (theirs,) = (x for x in published_curves.curves("pendulum", 0.0) if x.name == "ensemble_mean")
    published = {"pendulum": [theirs]}
    figures.draw_curves(curves, tmp_path / "a.png", x="step", y="y", published=published)
    (panel,) = drawn[0].axes
    ours, dotted = panel.lines
    np.testing.assert_allclose(ours.get_ydata(), [0, 200])
    # At the end 200 ± 100: the standard deviation of 100 and 300 by sqrt(2).
    heights = panel.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], [0, 300])
    np.testing.assert_array_equal(dotted.get_xdata(), theirs.x[theirs.x <= 30_000])
    assert 0 < len(dotted.get_xdata()) < len(theirs.x)


def test_methods_keep_their_colours_and_settings_have_lines_and_letters(tmp_path):
    def run(method, seed, **settings):
        path = tmp_path / f"{method}{seed}"
        rows = rows_for([seed], [5.0])
        return change_config(write_run(path, "pendulum", method, rows), config=settings)

    curves = run_reader.read_runs(
        [
            run("upper_bound", 0, risk=1.0, rollout_length=5),
            run("upper_bound", 1, risk=1.0, rollout_length=25),
            run("upper_bound", 2, risk=0.3, rollout_length=25),
            run("new", 0, risk=0.0, rollout_length=25),
            run("new", 1, risk=0.0, rollout_length=5),
            run("new", 2, risk=0.0, rollout_length=25),
        ]
    )
    styles, spelled = figures.curve_styles(curves)
    upper_bound = {
        curve.seed: styles[curve.task, curve.label]
        for curve in curves
        if curve.name == "upper_bound"
    }
    new = {curve.seed: styles[curve.task, curve.label] for curve in curves if curve.name == "new"}
    # Rollouts of 25 steps and a risk of 1 are the commonest where such settings differ; the other
    # method has another risk in all its runs.
    assert spelled == {
        "a": "risk=1.0   rollout_length=25",
        "b": "a, but risk=0.0",
        "c": "a, but risk=0.0   rollout_length=5",
        "d": "a, but risk=0.3",
        "e": "a, but rollout_length=5",
    }
    assert [upper_bound[seed].letter for seed in range(3)] == ["e", "a", "d"]
    assert [new[seed].letter for seed in range(3)] == ["b", "c", "b"]
    assert {look.color for look in upper_bound.values()} == {style.COLORS["upper_bound"]}
    assert {look.color for look in new.values()}.isdisjoint({style.COLORS["upper_bound"]})
    assert upper_bound[1].line == "-"
    assert len({look.line for look in (*upper_bound.values(), *new.values())}) == 5
    assert style.colors(["mbpo", "z"])["mbpo"] == style.colors(["mbpo"])["mbpo"]
    # One run is nothing to tell apart.
    assert figures.curve_styles(curves[:1])[1] == {}


def test_a_letter_says_what_holds_for_every_task_that_it_marks(tmp_path):
    def run(env, seed, risk):
        path = tmp_path / f"{env}{seed}{risk}"
        write_run(path, env, "pombu", rows_for([seed], [5.0]))
        return change_config(path, config={"risk": risk})

    runs = [run("pendulum", 0, 1.0), run("pendulum", 1, 1.0), run("pendulum", 0, 0.5)]
    curves = run_reader.read_runs([*runs, run("acrobot", 0, 0.3)])
    styles, spelled = figures.curve_styles(curves)
    letters = {curve.settings["risk"]: styles[curve.task, curve.label].letter for curve in curves}
    assert {risk: spelled[letter] for risk, letter in letters.items()} == {
        1.0: "risk=1.0",
        0.5: "a, but risk=0.5",
        0.3: "a, but risk=0.3",
    }


def test_methods_of_one_preset_have_their_colours_in_aggregates(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures.style, "save", lambda figure, path: drawn.append(figure))
    names = {"paper x=1": "paper", "paper pombu x=1": "paper pombu"}
    aggregates = [results.Aggregate(label, "IQM", 0.5, 0.4, 0.6, 2, 2) for label in names]
    figures.draw_aggregates(aggregates, names, tmp_path / "a.png")
    (panel,) = drawn[0].axes
    rows = [text.get_text() for text in panel.get_yticklabels()]
    found = {rows[round(line.get_ydata().mean())]: line.get_color() for line in panel.lines}
    colors = style.colors(names.values())
    assert found == {label: colors[name] for label, name in names.items()}
    assert len(set(found.values())) == 2


@pytest.mark.usefixtures("few_resamples")
def test_the_first_settings_are_those_of_a_run(tmp_path):
    runs = []
    for seed, settings in enumerate(({"risk": 0.3, "length": 5}, {"risk": 1.0, "length": 25})):
        rows = rows_for([seed], [5.0], (0, 100))
        run = write_run(tmp_path / str(seed), "pendulum", "pombu", rows)
        runs.append(change_config(run, config=settings))
    # The commonest of both would be a length of 25 and a risk of 0.3.
    styles, spelled = figures.curve_styles(run_reader.read_runs(runs))
    assert spelled == {"a": "length=5   risk=0.3", "b": "a, but length=25   risk=1.0"}
    assert [look.letter for look in styles.values()] == ["a", "b"]
    assert plot.main(["plot", *map(str, runs), f"--output={tmp_path}"]) == 0


def test_panels_name_their_seeds_and_published_curves_go_as_far_as_any_run(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures.style, "save", lambda figure, path: drawn.append(figure))
    runs = [
        write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [1.0], (0, 10_000))),
        write_run(tmp_path / "b", "pendulum", "mbpo", rows_for([0, 1, 2], [1.0] * 3, (0, 30_000))),
    ]
    (theirs,) = (x for x in published_curves.curves("pendulum", 0.0) if x.name == "ensemble_mean")
    curves = run_reader.read_runs(runs)
    draw = lambda *given, **more: figures.draw_curves(
        *given, tmp_path / "a.png", x="step", y="y", **more
    )
    draw(curves, published={"pendulum": [theirs]})
    (panel,) = drawn[0].axes
    assert panel.get_title() == "pendulum (1 to 3 seeds)"
    kept = theirs.x <= 30_000
    np.testing.assert_array_equal(panel.lines[-1].get_xdata(), theirs.x[kept])
    # The range over seeds, from the least to the most.
    heights = panel.collections[-1].get_paths()[0].vertices[:, 1]
    expected = [theirs.least[kept].min(), theirs.most[kept].max()]
    np.testing.assert_allclose([heights.min(), heights.max()], expected)
    draw(run_reader.read_runs(runs[:1]))
    assert drawn[1].axes[0].get_title() == "pendulum (1 seed)"


def test_aggregates_are_drawn_with_their_intervals_in_a_panel_for_each(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures.style, "save", lambda figure, path: drawn.append(figure))
    aggregates = [
        results.Aggregate("pombu", "median", 0.5, 0.4, 0.7, 6, 2),
        results.Aggregate("pombu", "IQM", 0.3, 0.25, 0.35, 6, 2),
    ]
    figures.draw_aggregates(aggregates, {"pombu": "pombu"}, tmp_path / "a.png")
    for panel, one in zip(drawn[0].axes, aggregates, strict=True):
        assert panel.get_title() == one.statistic
        (line,), (bar,) = panel.lines, panel.patches
        np.testing.assert_array_equal(line.get_xdata(), [one.value] * 2)
        np.testing.assert_allclose([bar.get_x(), bar.get_x() + bar.get_width()], one[3:5])
    assert "over 6 tasks" in drawn[0].get_supxlabel()


def test_letters_of_settings_go_on_after_z():
    assert [style.letter(i) for i in (0, 25, 26, 53)] == ["a", "z", "a1", "b2"]
