"""Reading runs, statistics by hand, figures, and bad input of the plotting command."""

import csv
import dataclasses
import json
import os

import numpy as np
import pytest

from experiments import figures, plot, results, run_reader, run_settings, style
from qusac_jax.qusac.config import Config
from tests.run_files import HEADER, change_config, rows_for, write_run

pytestmark = pytest.mark.usefixtures("few_resamples")


def test_mean_and_standard_error_by_hand(tmp_path):
    run = write_run(tmp_path / "a", "pendulum", "upper_bound", rows_for([0, 1], [100.0, 300.0]))
    grouped = results.group(run_reader.read_runs([run]))
    summary = results.summarize(grouped["pendulum"]["upper_bound"])
    np.testing.assert_array_equal(summary.x, [0, 100, 200])
    np.testing.assert_allclose(summary.mean, [0, 100, 200])
    # At the end: 100 and 300, standard deviation 100 sqrt(2), by sqrt(2).
    np.testing.assert_allclose(summary.standard_error, [0, 50, 100])
    assert summary.num_seeds == 2


def test_groups_by_preset_or_method_over_directories(tmp_path):
    runs = [
        write_run(tmp_path / "a", "pendulum", "upper_bound", rows_for([0], [1.0])),
        write_run(tmp_path / "b", "pendulum", "upper_bound", rows_for([1], [2.0])),
        write_run(tmp_path / "c", "pendulum", "ensemble_mean", rows_for([0], [3.0]), "mbpo"),
        write_run(tmp_path / "d", "acrobot", "pombu", rows_for([0], [4.0])),
        tmp_path,  # is no run
    ]
    grouped = results.group(run_reader.read_runs(runs))
    assert {env: list(by_label) for env, by_label in grouped.items()} == {
        "acrobot": ["pombu"],
        "pendulum": ["mbpo", "upper_bound"],
    }
    assert [curve.seed for curve in grouped["pendulum"]["upper_bound"]] == [0, 1]


def test_a_run_and_its_unfinished_copy_are_the_run(tmp_path, capsys):
    copy = write_run(tmp_path / "copy", "pendulum", "pombu", rows_for([0], [1.0], (0, 50, 100)))
    run = write_run(tmp_path / "run", "pendulum", "pombu", rows_for([0], [1.0]))
    for order in ([copy, run], [run, copy]):
        (curve,) = run_reader.read_runs(order)
        assert curve.run == run
        assert f"{run} (step 200) and {copy} (100)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seeds", "missing"),
    [([0, 1], False), ([0, 1, 2], True), (["0"], True), ([[0]], False), ("0", False)],
)
def test_what_a_finished_run_has_lost_is_named(tmp_path, capsys, seeds, missing):
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0, 1], [1.0, 2.0]))
    (run / "summary.json").write_text(json.dumps({"steps": 200, "seeds": seeds}))
    run_reader.read_runs([run])
    assert ("metrics.csv ends at step 0 of seed" in capsys.readouterr().err) == missing
    (run / "summary.json").write_text(json.dumps({"steps": 300, "seeds": [0, 1]}))
    run_reader.read_runs([run])
    assert "ends at step 200 of seed 0, and summary.json says 300" in capsys.readouterr().err


def test_steps_of_two_kinds_are_not_one_axis(tmp_path, capsys):
    online = write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [1.0]))
    offline = write_run(tmp_path / "b", "pendulum", "mopo", rows_for([0], [1.0]))
    change_config(offline, dataset={"dataset": "d", "sha256": "0123456789"})
    for runs, is_mixed in (([online, offline], True), ([offline], False), ([online], False)):
        run_reader.read_runs(runs)
        assert ("gradient updates" in capsys.readouterr().err) == is_mixed


def test_settings_that_have_no_room_are_counted():
    words = [f"hyperparameter_{i}={i}" for i in range(40)]
    text = figures._wrapped(words)
    shown = [word for word in words if word in text.split()]
    assert shown == words[: len(shown)]
    assert text.replace("\n", " ").endswith(f"and {40 - len(shown)} more")
    assert len(shown) > 8
    assert "more" not in figures._wrapped(words[:3])


def test_other_evaluation_points_are_interpolated_and_the_shortest_ends_the_mean(tmp_path):
    runs = [
        write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [200.0], (0, 100, 200))),
        write_run(tmp_path / "b", "pendulum", "pombu", rows_for([1], [150.0], (0, 50, 150))),
    ]
    summary = results.summarize(run_reader.read_runs(runs))
    np.testing.assert_array_equal(summary.x, [0, 50, 100, 150])
    np.testing.assert_allclose(summary.mean, [0, 50, 100, 150])  # both have slope 1


def test_moving_average_by_hand(tmp_path):
    rows = [(step, 0, value, value, 0) for step, value in enumerate([1.0, 2.0, 6.0, 7.0])]
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows)
    (curve,) = run_reader.read_runs([run], smooth=2)
    np.testing.assert_allclose(curve.y, [1.0, 1.5, 4.0, 6.5])
    assert curve.final_return == 7.0  # the table tells the last evaluation itself


def test_of_evaluations_at_the_same_x_the_last_counts(tmp_path):
    rows = [(step, 0, step / 10, 0.0, rewarded) for step, rewarded in ((0, 0), (20, 0), (40, 7))]
    header = HEADER.replace("mean_q", "rewarded")
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows[::-1], header=header)
    (curve,) = run_reader.read_runs([run], x="rewarded", smooth=2)
    np.testing.assert_array_equal(curve.x, [0, 7])
    np.testing.assert_allclose(curve.y, [1.0, 3.0])  # means of 0, 2 and of 2, 4


def test_an_aggregate_of_other_steps_is_called_one(tmp_path, capsys):
    for env, steps in (("pendulum", (0, 100, 200)), ("acrobot", (0, 100, 200))):
        write_run(tmp_path / env / "a", env, "pombu", rows_for([0], [1.0], steps))
    write_run(tmp_path / "acrobot" / "b", "acrobot", "upper_bound", rows_for([0], [1.0]))
    write_run(tmp_path / "pendulum" / "b", "pendulum", "upper_bound", rows_for([0], [1], (0, 50)))
    runs = [str(path) for path in sorted(tmp_path.glob("*/*"))]
    assert plot.main(["plot", *runs, f"--output={tmp_path}"]) == 0
    err = capsys.readouterr().err
    assert "those of pendulum end at 50 to 200 steps" in err
    assert "those of acrobot" not in err


def test_a_huge_value_leaves_later_averages_their_digits(tmp_path):
    rows = [(step, 0, value, value, 0) for step, value in enumerate([-1e25, 1.0, 2.0, 6.0])]
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows)
    (curve,) = run_reader.read_runs([run], smooth=1)
    np.testing.assert_array_equal(curve.y, [-1e25, 1.0, 2.0, 6.0])
    (curve,) = run_reader.read_runs([run], smooth=10)  # wider than the curve
    np.testing.assert_allclose(curve.y, [-1e25, -5e24, -1e25 / 3, -2.5e24])


@pytest.mark.parametrize("tail", ["300,0,9", "300,0,9,9,9", "3"])
def test_an_incomplete_last_line_is_ignored(tmp_path, tail):
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [5.0]), tail=tail)
    (curve,) = run_reader.read_runs([run])
    assert curve.x[-1] == 200
    assert curve.final_return == 5.0


def test_normalized_scores_by_hand(tmp_path):
    runs = [
        write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0, 1], [100.0, 300.0])),
        write_run(tmp_path / "b", "pendulum", "ensemble_mean", rows_for([2], [900.0]), "sac"),
        write_run(tmp_path / "c", "gym:Pendulum-v1", "pombu", rows_for([0, 1], [-200.0, -400.0])),
        write_run(
            tmp_path / "d", "gym:Pendulum-v1", "ensemble_mean", rows_for([0], [-1000.0]), "sac"
        ),
        write_run(tmp_path / "e", "acrobot", "pombu", rows_for([0], [1.0])),  # without sac
    ]
    scores = results.normalized_final_returns(results.group(run_reader.read_runs(runs)))
    # Tasks in alphabetical order: gym between the worst (-1000) and the best (-200), then / 1000.
    np.testing.assert_allclose(scores["pombu"], [[1.0, 0.1], [0.75, 0.3]])
    np.testing.assert_allclose(scores["sac"], [[0.0, 0.9]])


@pytest.mark.parametrize(
    ("env", "is_one"),
    [
        ("pendulum", True),
        ("reacher_hard:sincos", True),
        ("dmc:cheetah:run", True),
        ("playground:ball_in_cup", True),
        ("brax:hopper", False),
        ("functional:my.module:make", False),
        ("gym:Pendulum-v1", False),
    ],
)
def test_returns_of_the_control_suite_alone_have_a_known_maximum(env, is_one):
    assert results.is_suite_task(env) == is_one


def test_aggregates_by_hand():
    rng = np.random.default_rng(0)
    scores = {"a": rng.uniform(size=(8, 4)), "b": np.full((3, 4), 0.25)}
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    found = {(item.label, item.statistic): item for item in results.aggregate(scores)}
    np.testing.assert_array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    # Median of the means per task; mean of the middle half of all 32 scores.
    np.testing.assert_allclose(found["a", "median"].value, np.median(scores["a"].mean(0)))
    np.testing.assert_allclose(found["a", "IQM"].value, np.sort(scores["a"].ravel())[8:24].mean())
    assert found["a", "IQM"].low < found["a", "IQM"].value < found["a", "IQM"].high
    (one, _) = results.aggregate({"one": scores["a"][:1]})  # of one seed there is no interval
    assert one.value == np.median(scores["a"][0])
    assert np.isnan([one.low, one.high]).all()
    # Of one task, rliable's median would be that of one mean.
    (median, iqm) = results.aggregate({"a": scores["a"][:, :1]}, median_over="seeds")
    assert median.value == np.median(scores["a"][:, 0]) != scores["a"][:, 0].mean()
    assert scores["a"].min() <= median.low < median.value < median.high <= scores["a"].max()
    assert iqm.value == pytest.approx(np.sort(scores["a"][:, 0])[2:6].mean())
    # Nothing varies: no width.
    assert found["b", "IQM"][2:] == (0.25, 0.25, 0.25, 4, 3)


def test_command_writes_everything(tmp_path, capsys):
    runs = []
    for env in ("pendulum", "acrobot"):
        for method, final in (("upper_bound", 800.0), ("ensemble_mean", 100.0)):
            rows = rows_for([0, 1, 2], [final, final + 30, final + 60])
            runs.append(str(write_run(tmp_path / f"{env}-{method}", env, method, rows)))
    assert plot.main(["plot", *runs, f"--output={tmp_path / 'out'}"]) == 0
    assert sorted(os.listdir(tmp_path / "out")) == [
        "aggregate.csv",
        "aggregate.png",
        "learning_curves.csv",
        "learning_curves.png",
    ]
    # Standard deviation 30, by sqrt(3).
    printed = capsys.readouterr().out
    assert "| pendulum | upper_bound | 3 | 200 | 830.0 ± 17.3 | 831.0 ± 17.3 |" in printed
    assert "| acrobot | ensemble_mean | 3 | 200 | 130.0 ± 17.3 | 131.0 ± 17.3 |" in printed
    with (tmp_path / "out" / "learning_curves.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["env"], last["method"], last["num_seeds"]) == ("pendulum", "upper_bound", "3")
    assert float(last["mean"]) == 830.0
    with (tmp_path / "out" / "aggregate.csv").open() as file:
        rows = {(row["label"], row["statistic"]): row for row in csv.DictReader(file)}
    np.testing.assert_allclose(float(rows["upper_bound", "median"]["value"]), 0.83)
    assert (tmp_path / "out" / "learning_curves.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_drawn_and_no_return_has_a_column_of_its_last_values(tmp_path):
    rows = [(step, seed, 1.0, 1.0, step * (seed + 1)) for step in (0, 10) for seed in (0, 1)]
    curves = run_reader.read_runs([write_run(tmp_path / "a", "e", "sac", rows)], y="mean_q")
    head, _, row = plot.table(results.group(curves), "mean_q").split("\n")
    assert head.endswith("| without action cost | mean_q |")
    assert row.endswith("| 1.0 ± 0.0 | 15.0 ± 5.0 |")


def test_learning_curves_of_one_run(tmp_path):
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [5.0]))
    curves = run_reader.read_runs([run])
    figures.draw_curves(curves, tmp_path / "curve.png", x="step", y="eval_return")
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("make_bad", "message"),
    [
        (lambda path: path.mkdir(), "found no run"),
        (lambda path: write_run(path, "e", "m", []), "1 runs without an evaluation"),
        (
            lambda path: write_run(path, "e", "m", [(0, 0, 1)], header="step,seed,eval_return"),
            "no column eval_task_return",
        ),
        (
            lambda path: write_run(path, "e", "m", [(0, 0, 1), *rows_for([0], [1.0])]),
            "3 values in line 2 and 5 columns",
        ),
        (
            lambda path: write_run(path, "e", "m", [(0, 0, "abc", 1, 1)]),
            "line 2: eval_return is 'abc'",
        ),
    ],
)
def test_bad_runs_are_named(tmp_path, make_bad, message):
    make_bad(tmp_path / "bad")
    with pytest.raises(ValueError, match=message):
        run_reader.read_runs([tmp_path / "bad"])


def test_bad_configuration_and_options(tmp_path):
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [5.0]))
    with pytest.raises(ValueError, match="smooth must be at least 1"):
        run_reader.read_runs([run], smooth=0)
    with pytest.raises(ValueError, match="no column episode"):
        run_reader.read_runs([run], x="episode")
    (run / "config.json").write_text('{"env": "pendulum"}')
    with pytest.raises(ValueError, match="has no method, preset"):
        run_reader.read_runs([run])
    (run / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read"):
        run_reader.read_runs([run])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/nothing"], "error: runs: found no run in "),
        ([], "error: arguments are missing: run directories"),
        (["{}", "--smoth=3"], "error: --smoth is no flag (did you mean '--smooth'?)"),
        (["{}", "--output=/proc/here"], "error: output '/proc/here/learning_curves.png' cannot"),
        (["{}", "--output={}/file"], "file/learning_curves.png' cannot be written"),
    ],
)
def test_mistakes_end_the_command_with_code_2_and_one_line(tmp_path, capsys, arguments, message):
    (tmp_path / "file").write_text("")
    given = [argument.format(tmp_path) for argument in arguments]
    out = [] if any("output" in argument for argument in given) else [f"--output={tmp_path}"]
    assert plot.main(["plot", *given, *out]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_runs_with_other_settings_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / name, "pendulum", "pombu", rows_for([0], [5.0])) for name in "abc"]
    for run, clip_u in zip(runs, (True, False, False), strict=True):
        change_config(run, config={"clip_u": clip_u, "risk": 1.0})
    grouped = results.group(run_reader.read_runs(runs))
    assert set(grouped["pendulum"]) == {"pombu clip_u=True", "pombu clip_u=False"}
    # Seed 0 with clip_u=False is there twice and counts once.
    assert len(grouped["pendulum"]["pombu clip_u=False"]) == 1


def test_broken_runs_do_not_hide_the_others(tmp_path, capsys):
    good = write_run(tmp_path / "good", "pendulum", "pombu", rows_for([0], [5.0]))
    for name, text in (("list", "[]"), ("types", '{"env": 3, "method": null, "preset": []}')):
        bad = write_run(tmp_path / name, "pendulum", "pombu", rows_for([0], [5.0]))
        (bad / "config.json").write_text(text)
    binary = write_run(tmp_path / "binary", "pendulum", "pombu", rows_for([0], [5.0]))
    (binary / "metrics.csv").write_bytes(b"\xff\xfe\x00")
    runs = [tmp_path / "list", tmp_path / "types", binary, good]
    assert [curve.run for curve in run_reader.read_runs(runs)] == [good]
    assert capsys.readouterr().err.count("warning: runs:") == 3


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
        curve.seed: styles[curve.env, curve.label]
        for curve in curves
        if curve.name == "upper_bound"
    }
    new = {curve.seed: styles[curve.env, curve.label] for curve in curves if curve.name == "new"}
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
    letters = {curve.settings["risk"]: styles[curve.env, curve.label].letter for curve in curves}
    assert {risk: spelled[letter] for risk, letter in letters.items()} == {
        1.0: "risk=1.0",
        0.5: "a, but risk=0.5",
        0.3: "a, but risk=0.3",
    }


def test_runs_on_different_datasets_are_told_apart(tmp_path):
    def run(name, seed, final):
        rows = rows_for([seed], [final])
        path = write_run(tmp_path / f"{name}{seed}", "gym:Pendulum-v1", "pombu", rows)
        return change_config(path, dataset={"dataset": name, "sha256": name.encode().hex()})

    curves = run_reader.read_runs([run("medium", 0, 1.0), run("expert", 0, 9.0)])
    assert len(curves) == 2
    assert [curve.label.split()[1] for curve in curves] == ["dataset=medium", "dataset=expert"]


def test_seeds_on_one_dataset_are_of_one_method(tmp_path):
    def labels(*values):
        runs = []
        for seed, each in enumerate(values):
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
            run = write_run(path, "pendulum", "pombu", rows_for([seed], [5.0]))
            runs.append(change_config(run, **each))
        return {curve.label for curve in run_reader.read_runs(runs)}

    data = {"dataset": "here/a.hdf5", "sha256": "123456789"}
    elsewhere = data | {"dataset": "/there/a.hdf5"}
    assert labels({"dataset": data}, {"dataset": elsewhere}) == {"pombu"}
    assert len(labels({"dataset": data}, {"dataset": data | {"sha256": "2"}})) == 2
    bounds = [{"dataset": data | {"action_low": [low]}} for low in (-1.0, -0.4)]
    assert len(labels(*bounds)) == 2
    taken = {"init_from": "runs/0", "init_from_dataset": "123456789"}
    assert labels(taken, taken | {"init_from": "/elsewhere/1"}) == {"pombu"}
    assert labels(taken, taken | {"init_from_dataset": "2"}) == {
        "pombu init_from=a run on 12345678",
        "pombu init_from=a run on 2",
    }
    assert len(labels(taken, {"init_from": None})) == 2


def test_a_column_without_values_is_named(tmp_path, capsys):
    rows = [(step, 0, 1.0, 1.0, value) for step, value in ((0, 1.0), (1, 2.0))]
    good = write_run(tmp_path / "good", "e", "sac", rows)
    empty = write_run(tmp_path / "empty", "e", "mbpo", [(*row[:4], "nan") for row in rows])
    assert len(run_reader.read_runs([good, empty], y="mean_q")) == 1
    assert f"{empty / 'metrics.csv'} has no finite value of mean_q" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no finite value of mean_q; choose another column"):
        run_reader.read_runs([empty], y="mean_q")


def test_a_run_with_odd_steps_or_costs_does_not_end_the_others(tmp_path, capsys):
    good = write_run(tmp_path / "good", "e", "sac", rows_for([0], [5.0]))
    odd = write_run(tmp_path / "odd", "e", "mbpo", [("inf", 0, 1, 1, 1), (1, 0, 1, 1, 1)])
    (odd / "summary.json").write_text(json.dumps({"steps": 5, "seeds": [0]}))
    costly = change_config(write_run(tmp_path / "cost", "e", "pombu", []), action_cost="abc")
    curves = run_reader.read_runs([good, odd, costly])
    assert {curve.name for curve in curves} == {"sac", "mbpo"}
    said = capsys.readouterr().err
    assert "ends at step 1 of seed 0" in said
    assert "action_cost is 'abc', which is no number" in said


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


def test_a_further_setting_on_one_task_leaves_the_aggregate_of_the_others(tmp_path, capsys):
    def run(env, method, seed, risk):
        path = tmp_path / f"{env}{method}{seed}{risk}"
        write_run(path, env, method, rows_for([seed], [5.0]))
        return change_config(path, config={"risk": risk})

    envs, methods = ("acrobot", "pendulum", "point_mass"), ("mbpo", "pombu")
    runs = [run(e, m, seed, 1.0) for e in envs for m in methods for seed in range(2)]
    grouped = results.group(run_reader.read_runs(runs))
    assert results.normalized_final_returns(grouped)["pombu"].shape == (2, 3)
    runs.append(run("pendulum", "pombu", 0, 0.5))
    scores = results.normalized_final_returns(results.group(run_reader.read_runs(runs)))
    assert {label: values.shape for label, values in scores.items()} == {
        "mbpo": (2, 2),
        "pombu": (2, 2),
    }
    assert "pombu risk=0.5, pombu risk=1.0 are left out" in capsys.readouterr().err


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


def test_a_setting_that_came_later_has_its_default_in_an_earlier_run(tmp_path):
    fields = dataclasses.asdict(Config())
    runs = []
    for seed in range(2):
        run = write_run(tmp_path / str(seed), "pendulum", "pombu", rows_for([seed], [5.0]))
        runs.append(change_config(run, config=fields))
        fields["dynamics"] = {"clip_rewards": False}
        fields.pop("roll_out_every", None)
    assert [curve.label for curve in run_reader.read_runs(runs)] == ["pombu", "pombu"]
    fields["dynamics"]["learn_variance_bounds"] = True  # which runs of today cannot have
    change_config(runs[1], config=fields)
    assert [curve.label for curve in run_reader.read_runs(runs)] == [
        "pombu dynamics.learn_variance_bounds=False",
        "pombu dynamics.learn_variance_bounds=True",
    ]
    fields["dynamics"]["learn_variance_bounds"] = False
    fields["roll_out_every"] = 50
    change_config(runs[1], config=fields)
    labels = [curve.label for curve in run_reader.read_runs(runs)]
    assert labels == ["pombu roll_out_every=0", "pombu roll_out_every=50"]


def test_settings_without_effect_tell_nothing_apart(tmp_path):
    def labels(method, **fields):
        runs = []
        for seed in range(2):
            path = tmp_path / f"{method}{len(list(tmp_path.iterdir()))}"
            config = dataclasses.asdict(Config(method=method))
            run = write_run(path, "pendulum", method, rows_for([seed], [5.0]))
            runs.append(change_config(run, config=config | (fields if seed else {})))
        return {curve.label for curve in run_reader.read_runs(runs)}

    assert labels("ensemble_mean", risk=0.5, unet_steps=3) == {"ensemble_mean"}
    assert labels("pombu", risk=0.5, gap_samples=7) == {"pombu risk=0.5", "pombu risk=1.0"}


def test_settings_that_only_some_runs_know(tmp_path):
    known, gone = [{"risk": 1.0}, {}], [{"no_longer_there": 1.0}, {}]
    assert run_settings.differing(known) == ["risk"]
    assert run_settings.describe({}, ["risk"]) == ["no risk"]
    assert run_settings.differing(gone) == []  # today's programs do not know it
    assert run_settings.differing([*gone, {"no_longer_there": 2.0}]) == ["no_longer_there"]


def test_infinite_and_huge_values_are_left_out_with_a_warning(tmp_path, capsys):
    rows = rows_for([0, 1], [5.0, 7.0], (0, 100, 200, 300))
    for row, value in ((2, 1e308), (3, "inf"), (4, "-inf")):
        rows[row] = (*rows[row][:2], value, *rows[row][3:])
    rows += [(400, 0, "nan", "nan", 0)]
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows)
    curves = run_reader.read_runs([run])
    assert [list(curve.x) for curve in curves] == [[0, 300], [0, 200, 300]]
    assert "has infinite values, or some beyond 1e+100, in 3 of 9 lines" in capsys.readouterr().err
    assert plot.main(["plot", str(run), f"--output={tmp_path}"]) == 0
    only = write_run(tmp_path / "b", "pendulum", "pombu", [(0, 0, "inf", 1, 1)])
    assert plot.main(["plot", str(only), f"--output={tmp_path}"]) == 2
    assert "has no finite value of eval_return" in capsys.readouterr().err


@pytest.mark.parametrize("seed", ["inf", "nan", "0.5", "1e300"])
def test_seeds_that_are_no_integers_are_damage(tmp_path, seed):
    run = write_run(tmp_path / "a", "pendulum", "pombu", [(0, seed, 1, 1, 1)])
    with pytest.raises(ValueError, match="seeds that are no integers"):
        run_reader.read_runs([run])


@pytest.mark.parametrize("field", ["env", "method", "preset"])
def test_an_empty_name_is_a_missing_one(tmp_path, field):
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [5.0]))
    change_config(run, **{field: " "})
    with pytest.raises(ValueError, match=f"has no {field}; leave this run out"):
        run_reader.read_runs([run])


@pytest.mark.parametrize(
    "name", ["x" * 3000, "$\\frac{$", "_hidden", "a\nb\x00\x1b[31m", "\ud800", "方法", "a|b%s{}"]
)
def test_odd_names_are_drawn_and_written(tmp_path, name):
    run = write_run(tmp_path / "a", name, name, rows_for([0, 1], [5.0, 6.0]))
    change_config(run, config={name: name})
    other = write_run(tmp_path / "b", name, name, rows_for([2], [5.0]))
    change_config(other, config={name: name * 2})
    assert plot.main(["plot", str(run), str(other), f"--output={tmp_path}"]) == 0
    assert (tmp_path / "learning_curves.png").stat().st_size < 500_000
    assert "\x00" not in (tmp_path / "learning_curves.csv").read_text(encoding="utf-8")


def test_seeds_without_a_common_range_are_named(tmp_path, capsys):
    runs = [
        write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [5.0], (0, 100))),
        write_run(tmp_path / "b", "pendulum", "pombu", rows_for([1], [5.0], (200, 300))),
        write_run(tmp_path / "c", "pendulum", "mbpo", rows_for([1], [5.0], (200, 300))),
    ]
    assert plot.main(["plot", *map(str, runs), f"--output={tmp_path}"]) == 0
    error = capsys.readouterr().err
    assert "the seeds of pendulum pombu have no part of the x axis in common" in error
    assert "seed 0 from 0 to 100, seed 1 from 200 to 300" in error
    with (tmp_path / "learning_curves.csv").open() as file:
        assert {row["method"] for row in csv.DictReader(file)} == {"mbpo"}
    assert plot.main(["plot", *map(str, runs[:2]), f"--output={tmp_path}"]) == 2


def test_hyperparameters_of_a_time_without_groups_have_todays_names(tmp_path, monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Dynamics:
        hidden: int = 8
        nll_beta: float = 0.75
        max_epochs: int = 50

    @dataclasses.dataclass(frozen=True)
    class Config:
        risk: float = 1.0
        dynamics: Dynamics = Dynamics()

    monkeypatch.setattr(run_settings, "Config", Config)
    monkeypatch.setattr(run_settings.unread, "names", lambda config, is_offline: set())
    rows = rows_for([0], [5.0])
    old = write_run(tmp_path / "old", "pendulum", "pombu", rows)
    earlier = {"risk": 1.0, "dynamics_hidden": 8, "nll_beta": 0.75, "fit_max_epochs": 50}
    change_config(old, config=earlier)
    new = write_run(tmp_path / "new", "pendulum", "pombu", rows)
    dynamics = {"hidden": 8, "nll_beta": 0.5, "max_epochs": 50}
    change_config(new, config={"risk": 1.0, "dynamics": dynamics})
    labels = [curve.label for curve in run_reader.read_runs([old, new])]
    assert labels == ["pombu dynamics.nll_beta=0.75", "pombu dynamics.nll_beta=0.5"]


def test_tasks_that_count_for_no_aggregate_are_named(tmp_path, capsys):
    def run(env, method):
        return str(write_run(tmp_path / f"{env}{method}", env, method, rows_for([0], [5.0])))

    runs = [run("acrobot", "mbpo"), run("acrobot", "pombu"), run("pendulum", "pombu")]
    output = tmp_path / "out"
    assert plot.main(["plot", *runs, f"--output={output}"]) == 0
    said = capsys.readouterr()
    assert "No aggregate over tasks: one task was run with every method." in said.out
    assert "runs: pendulum: not run with every method" in said.err
    assert not (output / "aggregate.png").exists()
    runs.append(run("pendulum", "mbpo"))
    assert plot.main(["plot", *runs, f"--output={output}"]) == 0  # one seed each: no intervals
    assert ",nan,nan,2,1" in (output / "aggregate.csv").read_text()
