"""Groups of runs, and statistics of them by hand."""

import numpy as np
import pytest

from experiments import results, run_reader
from tests.run_files import change_config, rows_for, write_run

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


def test_other_evaluation_points_are_interpolated_and_the_shortest_ends_the_mean(tmp_path):
    runs = [
        write_run(tmp_path / "a", "pendulum", "pombu", rows_for([0], [200.0], (0, 100, 200))),
        write_run(tmp_path / "b", "pendulum", "pombu", rows_for([1], [150.0], (0, 50, 150))),
    ]
    summary = results.summarize(run_reader.read_runs(runs))
    np.testing.assert_array_equal(summary.x, [0, 50, 100, 150])
    np.testing.assert_allclose(summary.mean, [0, 50, 100, 150])  # both have slope 1


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


def test_runs_with_other_settings_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / name, "pendulum", "pombu", rows_for([0], [5.0])) for name in "abc"]
    for run, clip_u in zip(runs, (True, False, False), strict=True):
        change_config(run, config={"clip_u": clip_u, "risk": 1.0})
    grouped = results.group(run_reader.read_runs(runs))
    assert set(grouped["pendulum"]) == {"pombu clip_u=True", "pombu clip_u=False"}
    # Seed 0 with clip_u=False is there twice and counts once.
    assert len(grouped["pendulum"]["pombu clip_u=False"]) == 1


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


def test_of_each_method_as_many_seeds_count_as_it_has_on_every_task(tmp_path):
    seeds = {("pendulum", "pombu"): 3, ("acrobot", "pombu"): 2}
    seeds |= {("pendulum", "mbpo"): 1, ("acrobot", "mbpo"): 1}
    runs = [
        write_run(tmp_path / f"{env}-{name}", env, name, rows_for(range(n), [100.0] * n))
        for (env, name), n in seeds.items()
    ]
    scores = results.normalized_final_returns(results.group(run_reader.read_runs(runs)))
    assert {label: values.shape for label, values in scores.items()} == {
        "mbpo": (1, 2),
        "pombu": (2, 2),
    }


def test_what_counts_as_final_also_sets_the_scale_of_other_tasks(tmp_path):
    rows = rows_for([0, 1], [-200.0, -400.0], (0, 100, 200))
    run = write_run(tmp_path / "a", "gym:Pendulum-v1", "pombu", rows)
    grouped = results.group(run_reader.read_runs([run]))
    half = lambda curve: float(curve.y[1])  # -100 and -200
    found = results.normalized_final_returns(grouped, half)["pombu"]
    np.testing.assert_allclose(found, [[1.0], [0.0]])
    same = results.normalized_final_returns(grouped, lambda curve: 5.0)["pombu"]
    np.testing.assert_array_equal(same, [[0.0], [0.0]])  # no range to divide by
