"""`hf-cyclical compare --add`: one table of runs that were made in several folders."""

import dataclasses
import json
import shutil

import pytest

from hf_cyclical import load_report

from .conftest import TWO


@pytest.fixture(scope="session")
def other_once(command, finished_once, tmp_path_factory):
    """A folder with the same runs for another seed, from the same dense model."""
    from .conftest import SHORT

    folder = tmp_path_factory.mktemp("other") / "out"
    shutil.copytree(finished_once[0], folder, ignore=shutil.ignore_patterns("reports", "results.json", "cells"))
    code, _, err = command(*SHORT, *TWO[:-1], 2, "--output_dir", folder)
    assert code == 0, err
    return folder


@pytest.fixture
def other(other_once, tmp_path):
    return shutil.copytree(other_once, tmp_path / "other")


def add(compare, folder, *files):
    return compare("--add", *files, folder=folder, short=False)


def changed(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    return path


def as_published(cycles):
    """Results have the layers of a run's end alone."""
    return tuple(dataclasses.replace(cycle, layers=()) for cycle in cycles)


def snapshot(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".locks" not in path.parts}


def test_the_runs_of_another_machine_join_the_table(compare, finished, other):
    both = compare(*TWO[:-1], 1, 2, folder=finished.with_name("both"))
    code, out, err = add(compare, finished, other / "results.json")
    assert code == 0, err
    assert "mean ± standard deviation of 2 seeds" in out
    assert out.splitlines()[:5] == both[1].splitlines()[:5]
    assert out.endswith(f"Runs added to {finished}: 2\n")
    made = load_report(other / "reports" / "cyclical-0.9-seed2.json")
    taken = load_report(finished / "reports" / "cyclical-0.9-seed2.json")
    assert (taken.cycles, taken.layers, taken.config) == (as_published(made.cycles), made.layers, made.config)
    assert compare("--show", finished / "results.json")[1].strip() in out


def test_what_was_added_is_not_run_again(compare, finished, other):
    assert add(compare, finished, other / "results.json")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in (finished / "reports").iterdir()}
    assert compare(*TWO[:-1], 1, 2)[0] == 0
    assert {path: path.stat().st_mtime_ns for path in (finished / "reports").iterdir()} == before


def test_a_table_can_be_made_of_files_alone_and_completed_later(compare, finished, other, tmp_path):
    files = [finished / "results.json", other / "results.json"]
    code, out, err = add(compare, tmp_path / "new", *files)
    assert code == 0, err
    assert "2 seeds" in out
    assert len(list((tmp_path / "new" / "reports").iterdir())) == 4
    code, out, err = compare(*TWO[:-1], 1, 2, folder=tmp_path / "new")
    assert code == 0, err
    assert not (tmp_path / "new" / "cells").exists()


def test_a_run_that_is_there_stays(compare, finished):
    theirs = changed(
        shutil.copy(finished / "results.json", finished.with_name("theirs.json")),
        lambda data: data["cells"][0]["report"]["cycles"][-1]["metrics"].update(accuracy=0.123),
    )
    before = snapshot(finished / "reports")
    code, out, err = add(compare, finished, theirs)
    assert code == 0, err
    assert out.endswith(": 0\n")
    assert snapshot(finished / "reports") == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["setting"].update(scale=0.5), "scale is 0.006 there, 0.5 here: name another output_dir"),
        (lambda d: d["setting"].update(experiment="digits-scope"), "lacks here: upgrade"),
        (lambda d: d["setting"]["arguments"].extend(["--augment", "none"]), "arguments is ["),
        (lambda d: d["cells"][0].update(sparsity=0.8), "is of sparsity and seed (0.9, 2), not (0.8, 2)"),
        (
            lambda d: d["cells"][0]["report"]["about"].update(
                command=d["cells"][0]["report"]["about"]["command"].replace("one_shot", "gradual")
            ),
            "one_shot 0.9 seed 2 in {path} had other settings: method is gradual there, one_shot here",
        ),
        (lambda d: d["cells"][1]["report"]["dense"].update(loss=9.0), "{path} starts from another dense model than"),
        (
            lambda d: d["cells"][0]["report"]["about"].update(command="hf-cyclical prune --seed '1"),
            "one_shot 0.9 seed 2 in {path} has a command that is none: take another copy",
        ),
        (
            lambda d: d["cells"][0]["report"]["about"].update(mean_density="half"),
            "is not a complete report, see its about mean_density: take another copy",
        ),
        (lambda d: d.pop("cells"), "is not a file of results"),
    ],
)
def test_other_settings_are_refused_in_one_line_and_nothing_is_added(compare, finished, other, change, words):
    path = changed(other / "results.json", change)
    before = snapshot(finished)
    code, _, err = add(compare, finished, path)
    assert code == 2
    assert words.format(path=path) in err
    assert err.count("\n") == 1
    assert snapshot(finished) == before


def test_a_run_of_another_experiment_is_taken_where_it_is_the_same(compare, finished, tmp_path):
    """The digits' cyclical pruning is the row `cubic` of the table of schedules, which says so in other words."""
    code, out, err = add(compare, tmp_path / "new", finished / "results.json", "--experiment", "digits-schedules")
    assert code == 0, err
    assert "| cubic | accuracy |" in out
    assert "one_shot" not in out
    assert out.endswith(f"Runs added to {tmp_path / 'new'}: 1\n")
    made = load_report(finished / "reports" / "cyclical-0.9-seed1.json")
    taken = load_report(tmp_path / "new" / "reports" / "cubic-0.9-seed1.json")
    assert (taken.cycles, taken.config) == (as_published(made.cycles), made.config)
    rows = "--experiment", "digits-schedules", "--methods", "cubic", *TWO[3:]
    code, _, err = compare(*rows, folder=tmp_path / "new")
    assert code == 0, err
    assert not (tmp_path / "new" / "cells").exists()


def test_only_what_is_set_alike_is_the_same_run(compare, finished, tmp_path):
    """s_init is 0.45 in the one and 0.5 in the other."""
    code, _, err = add(compare, tmp_path / "new", finished / "results.json", "--experiment", "digits-init")
    assert code == 2
    assert f"{finished / 'results.json'} has no run that is also one of digits-init: leave it out" in err
    assert not (tmp_path / "new").exists()


def test_runs_of_another_preset_are_never_the_same(compare, finished, tmp_path):
    code, _, err = add(compare, tmp_path / "new", finished / "results.json", "--experiment", "cifar10-resnet20")
    assert code == 2
    assert "is of digits, whose runs start from another dense model than those of cifar10-resnet20" in err
    assert err.count("\n") == 1


def test_files_that_contradict_each_other_are_refused(compare, finished, other, tmp_path):
    path = changed(other / "results.json", lambda data: data["setting"].update(updates=7))
    code, _, err = add(compare, tmp_path / "new", finished / "results.json", path)
    assert code == 2
    assert f"{path} is of another setting than {finished / 'results.json'}: updates is 7, not None" in err
    assert not (tmp_path / "new").exists()
