"""Suites of offline runs: what is planned, that fits are shared, what is shown."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from experiments.suite import command as suite
from experiments.suite import planning, programs, report
from experiments.suite.planning import Combinations
from tests.programs import ROOT
from tests.run_files import HEADER, change_config, rows_for, write_run
from tests.tiny import DATASET, ENV, OFFLINE

pytestmark = pytest.mark.usefixtures("few_resamples")
# The run of the other tests, without what a suite says itself.
FLAGS = [flag for flag in OFFLINE if not flag.startswith(("--dataset=", "--num_seeds="))]
NAME = "short_random-v0"


def plan(folder, methods, *, program=programs.OFFLINE, tasks=(DATASET,)):
    combinations = Combinations(tasks, methods, ["0-1"])
    return planning.plan(combinations, 2, FLAGS, folder, program=program)


def fitted(run):
    """Leaves behind what a run does that has fitted its models."""
    folder = run.path / "dynamics" / "0"
    folder.mkdir(parents=True)
    (folder / "checksums.json").touch()


def test_runs_take_the_models_that_another_has_fitted(dataset, tmp_path):
    first, second, third = plan(tmp_path, ["upper_bound", "mopo", "sac"])
    assert [run.name for run in (first, second, third)] == [
        f"{NAME}-upper_bound-s0-1",
        f"{NAME}-mopo-s0-1",
        f"{NAME}-sac-s0-1",
    ]
    assert first.program == "offline"
    assert first.arguments[:2] == (f"--dataset={DATASET}", "--method=upper_bound")
    assert second.arguments_now() == second.arguments
    fitted(first)
    assert second.arguments_now() == (*second.arguments, f"--dynamics={first.path}")
    assert first.arguments_now() == first.arguments
    assert third.arguments_now() == third.arguments  # it has no models
    fitted(second)  # by itself, before it was stopped
    assert second.arguments_now() == second.arguments


def test_models_of_other_settings_are_not_taken(dataset, tmp_path):
    # paper_mbpo has targets that are not normalized.
    runs = plan(tmp_path, ["upper_bound", "paper_mbpo"])
    fitted(runs[0])
    assert runs[1].arguments_now() == runs[1].arguments


def test_online_and_offline_runs_are_suites_of_their_own(dataset, tmp_path):
    run = write_run(tmp_path / "pendulum-sac-s0", "pendulum", "sac", [])
    message = "is a run of experiments.online; choose another --workdir for those of .*offline"
    with pytest.raises(ValueError, match=message):
        plan(tmp_path, ["upper_bound"])
    change_config(run, dataset={"dataset": "a.hdf5"})
    with pytest.raises(ValueError, match=r"experiments.offline; .* of experiments.online"):
        planning.plan(Combinations(["pendulum"], ["sac"], ["0"]), 1, (), tmp_path)
    (run / "config.json").write_text("")  # of which the suite says more when it comes to it
    assert len(plan(tmp_path, ["upper_bound"])) == 1


def test_two_datasets_of_one_name_are_named(dataset, tmp_path):
    source = pathlib.Path(os.environ["MINARI_DATASETS_PATH"], DATASET)
    elsewhere = shutil.copytree(source, tmp_path / "elsewhere" / DATASET)
    with pytest.raises(ValueError, match=f"datasets: two of them would have .*'{NAME}-sac'"):
        plan(tmp_path / "runs", ["sac"], tasks=(DATASET, str(elsewhere)))


@pytest.mark.slow
def test_a_suite_of_offline_runs_from_start_to_end(dataset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    arguments = [f"--datasets={DATASET}", "--methods=upper_bound,mopo", "--seeds=0-1", *FLAGS]
    arguments += ["--num_seeds=2", "--jobs=1", f"--workdir={tmp_path}"]
    assert suite.main(["suite", *arguments]) == 0
    assert "2 runs, 0 of them done" in capsys.readouterr().out
    runs = tmp_path / "runs"
    first, second = (runs / f"{NAME}-{method}-s0-1" for method in ("upper_bound", "mopo"))
    about = json.loads((second / "config.json").read_text())
    assert (about["env"], about["dynamics"]) == (ENV, str(first))
    assert not (second / "dynamics").exists()
    text = (tmp_path / "report.md").read_text()
    score = json.loads((second / "summary.json").read_text())["final_scores"]
    assert "| score of the last policy, % |" in text
    assert f"| {DATASET} | mopo | 2 | 12 | {np.mean(score):.1f} ± " in text
    # All is done, and stays.
    assert suite.main(["suite", *arguments]) == 0
    assert "2 runs, 2 of them done" in capsys.readouterr().out
    assert suite.main(["suite", f"--workdir={tmp_path}", "--report"]) == 0


@pytest.mark.parametrize("has_reference", [True, False])
def test_report_by_hand(tmp_path, has_reference):
    finals = {"upper_bound": ([40.0, 60.0], [0.0, 20.0]), "mopo": ([10.0, 30.0], [50.0, 50.0])}
    for method, by_kind in finals.items():
        for kind, scores in zip(("medium", "expert"), by_kind, strict=True):
            rows = [
                (*row[:4], row[2] / 10)
                for row in rows_for([0, 1], [10 * score for score in scores], (0, 1_000, 2_000))
            ]
            header = HEADER.replace("mean_q", "eval_score" if has_reference else "mean_q")
            run = tmp_path / "runs" / f"{kind}-{method}-s0-1"
            write_run(run, "pendulum", method, rows, header=header)
            reference = {"min_return": 0.0, "max_return": 1_000.0} if has_reference else None
            data = {"dataset": f"hopper_{kind}-v2.hdf5", "sha256": kind, "reference": reference}
            change_config(run, dataset=data, num_steps=2_000, action_cost=0.0)
    text, _ = report.write(tmp_path / "runs", tmp_path / "jobs", tmp_path, [])
    if has_reference:
        # Of two seeds the interquartile mean is the mean.
        assert "| hopper_medium-v2 | upper_bound | 2 | 2000 | 50.0 ± 10.0 | 50.0 [" in text
        assert "| hopper_expert-v2 | mopo | 2 | 2000 | 50.0 ± 0.0 | 50.0 [50.0, 50.0] |" in text
        assert "of normalized scores in percent" in text
        assert "| mopo | 2 | 2 | 40.0 [" in text
    else:
        assert "| return of the last policy |" in text
        assert "| hopper_medium-v2 | upper_bound | 2 | 2000 | 500.0 ± 100.0 | 500.0 [" in text
        # Returns of the task that the data are of, which is one of the control suite.
        assert "as a part of the largest return, up" in text
        assert "| mopo | 2 | 2 | 0.400 [" in text
    assert "| - | - |" in text  # nothing was published of these
