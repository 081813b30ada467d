"""Runs as they are read to be compared: their curves, and what is damaged."""

import json

import numpy as np
import pytest

from experiments import run_reader
from tests.run_files import HEADER, change_config, rows_for, write_run


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
    assert ("metrics.csv has no evaluation of seed" in capsys.readouterr().err) == missing
    (run / "summary.json").write_text(json.dumps({"steps": 300, "seeds": [0, 1]}))
    run_reader.read_runs([run])
    assert "ends at step 200 of seed 0, and summary.json says 300" in capsys.readouterr().err


def test_an_evaluation_that_was_lost_is_named(tmp_path, capsys):
    rows = [(100, 0, 1.0, 1.0, 0.0), (200, 0, "nan", 2.0, 0.0)]
    run = write_run(tmp_path / "a", "pendulum", "pombu", rows)
    (run / "summary.json").write_text(json.dumps({"steps": 200, "seeds": [0]}))
    run_reader.read_runs([run])
    assert "metrics.csv ends at step 100 of seed 0, and summary" in capsys.readouterr().err


def test_a_tabular_run_is_named(tmp_path):
    run = write_run(tmp_path / "a", "deep_sea", "psrl", [])
    (run / "config.json").write_text('{"env": "deep_sea", "num_episodes": 5, "config": {}}')
    with pytest.raises(ValueError, match=r"is a run of experiments\.tabular, whose curve"):
        run_reader.read_runs([run])


def test_steps_of_two_kinds_are_not_one_axis(tmp_path, capsys):
    online = write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [1.0]))
    offline = write_run(tmp_path / "b", "pendulum", "mopo", rows_for([0], [1.0]))
    change_config(offline, dataset={"dataset": "d", "sha256": "0123456789"})
    for runs, is_mixed in (([online, offline], True), ([offline], False), ([online], False)):
        run_reader.read_runs(runs)
        assert ("gradient updates" in capsys.readouterr().err) == is_mixed


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


@pytest.mark.parametrize(
    ("make_bad", "message"),
    [
        (lambda path: path.mkdir(), "found no run"),
        (lambda path: write_run(path, "e", "m", []), "found no evaluation in"),
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


def test_datasets_are_tasks_of_their_own(tmp_path):
    def run(name, seed, final):
        rows = rows_for([seed], [final])
        path = write_run(tmp_path / f"{name}{seed}", "gym:Pendulum-v1", "pombu", rows)
        return change_config(path, dataset={"dataset": name, "sha256": name.encode().hex()})

    curves = run_reader.read_runs([run("medium", 0, 1.0), run("expert", 0, 9.0)])
    assert [(curve.task, curve.label) for curve in curves] == [
        ("medium", "pombu"),
        ("expert", "pombu"),
    ]
    assert {curve.env for curve in curves} == {"gym:Pendulum-v1"}


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
    of_another = {"dataset": data, "env": "acrobot"}  # to evaluate in
    assert labels({"dataset": data}, of_another) == {"pombu env=pendulum", "pombu env=acrobot"}
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
    unnamed = write_run(tmp_path / "data", "e", "ensemble_mean", [])
    change_config(unnamed, config={"critic_data": ["model"]})
    curves = run_reader.read_runs([good, odd, costly, unnamed])
    assert {curve.name for curve in curves} == {"sac", "mbpo"}
    said = capsys.readouterr().err
    assert "critic_data is ['model'], which is no name" in said
    assert "ends at step 1 of seed 0" in said
    assert "action_cost is 'abc', which is no number" in said


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
