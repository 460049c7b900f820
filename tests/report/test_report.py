"""The page of vpo-report: complete, in one file, and safe whatever the runs hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.report.reading import Page, hashed
from tests.report.written_runs import (
    write_evaluation,
    write_maze_run,
    write_search,
    write_text_run,
)
from vpo_lightning.evaluation.pool import read_pools, write_pools
from vpo_lightning.evaluation.pool_store import pool_name
from vpo_lightning.evaluation.report.curves import curves
from vpo_lightning.evaluation.report.folders import Run
from vpo_lightning.report import main

HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "<!-- <script> 日本語 \N{SNOWMAN} \u2028 & \"quoted\" 'text'",
]


def report(folder: Path, *arguments: str) -> Page:
    out = folder / "page.html"
    assert main([str(folder), "--out", str(out), *arguments]) == 0
    return Page(out)


@pytest.fixture(scope="module")
def page(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert main([str(sweep), "--out", str(out)]) == 0
    return Page(out)


def test_the_page_asks_for_nothing_outside_itself(page: Page) -> None:
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert page.policy["default-src"] == "'none'"
    assert page.policy["connect-src"] == "'none'"
    assert len(page.html.encode()) < 5 * 2**20


def test_the_content_policy_allows_the_pages_own_scripts_and_style_only(page: Page) -> None:
    assert page.policy["script-src"].split() == [hashed(script) for script in page.scripts]
    assert page.policy["style-src"] == hashed(page.styles[0])
    assert len(page.styles) == 1


def test_the_headline_compares_vpo_with_grpo_over_the_seeds(page: Page) -> None:
    assert "vpo beats grpo: one deployed set is worth" in page.text
    assert "means over 2 seeds" in page.text
    assert "95% interval +" in page.text


def test_the_headlines_means_are_those_of_the_evaluation(page: Page, sweep: Path) -> None:
    key = "deployed_expected_max"
    means: dict[str, list[float]] = {"vpo": [], "grpo": []}
    for run in sweep.iterdir():
        for record in json.loads((run / "eval.json").read_text())["evaluations"]:
            if record["policy"] in means:
                means[record["policy"]].append(record["figures"][key]["mean"])
    mine, theirs = (sum(values) / len(values) for values in means.values())
    assert f"worth {mine:.3f} against {theirs:.3f} (+{mine - theirs:.3f}" in page.text


def test_all_seeds_of_an_evaluation_enter_the_headlines_difference(
    sweep: Path, tmp_path: Path
) -> None:
    """Each run gets the pools of its other seed as those of a second sampling seed."""
    key = "deployed_expected_max"
    means: list[float] = []
    for name, first, second in (("vpo", 0, 2), ("grpo", 1, 3)):
        folders = [sweep / f"{n}_maze_{name}_seed{n // 2}" for n in (first, second)]
        copy = Path(shutil.copytree(folders[0], tmp_path / name))
        pools = folders[1] / "pools" / pool_name(name, 0.7)
        shutil.copy(pools, copy / "pools" / pool_name(name, 0.7, seed=1))
        write_evaluation(copy)
        records = json.loads((copy / "eval.json").read_text())["evaluations"]
        means += [r["figures"][key]["mean"] for r in records if r["policy"] == name]
    mine, theirs = means
    text = report(tmp_path).text
    assert f"worth {mine:.3f} against {theirs:.3f} (+{mine - theirs:.3f}" in text


def test_a_further_policy_in_a_runs_folder_leaves_the_headline_to_the_runs_own(
    sweep: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(sweep / "0_maze_vpo_seed0", tmp_path / "run"))
    pools = read_pools(folder / "pools" / pool_name("vpo", 0.7))
    sampling = {"policy": "best", "temperature": 0.7}
    write_pools(pools, folder / "pools" / pool_name("best", 0.7), sampling)
    write_evaluation(folder)
    page = report(tmp_path)
    assert "the start policy (start, single): one deployed set is worth" in page.text
    assert "vpo: best" in page.text


def test_every_run_has_its_curves(page: Page) -> None:
    labels = [f"{name}, seed {seed}" for seed in (0, 1) for name in ("vpo", "grpo")]
    assert [run["label"] for run in page.data["runs"]] == labels
    charts = {chart["title"]: chart for chart in page.data["curves"]}
    wanted = {"Set reward", "Diversity", "Hypervolume", "Entropy", "Length", "Truncated", "gold"}
    assert wanted | {"KL to the start policy"} <= set(charts)
    for chart in charts.values():
        assert list(chart["series"]) == labels
    assert charts["Set reward"]["series"]["vpo, seed 0"]["x"] == [1, 2, 3, 4, 5, 6]


def test_best_of_k_has_all_policies_with_bands(page: Page) -> None:
    counted = [chart for chart in page.data["answers"] if chart["unit"] == "answers"]
    families = {chart["family"]: chart for chart in counted}
    assert {"best", "expected_max", "pass"} <= set(families)
    series = families["expected_max"]["series"]
    assert set(series) == {*(run["label"] for run in page.data["runs"]), "start, single"}
    band = series["vpo, seed 0"]
    assert band["x"] == [1, 3, 6]
    rows = zip(band["low"], band["y"], band["high"], strict=True)
    assert all(low <= mean <= high for low, mean, high in rows)


def test_the_sample_holds_whole_groups_from_the_first_to_the_last_step(sweep: Path) -> None:
    page = report(sweep, "--rollouts", "12")
    for groups in page.samples["rollouts"].values():
        assert sum(len(group["rollouts"]) for group in groups) <= 12
        assert {len(group["rollouts"]) for group in groups} == {4}
        assert {1, 6} <= {group["step"] for group in groups}
    assert "12 of vpo, seed 0" in page.text


def test_rollouts_show_the_tasks_own_picture(page: Page) -> None:
    group = page.samples["rollouts"]["vpo, seed 0"][0]
    tag, attributes, children = group["rollouts"][0]["picture"]
    assert tag == "svg"
    assert attributes["class"] == "vpo-maze"
    assert sum(child[0] == "polyline" for child in children if isinstance(child, list)) == 3
    assert page.samples["compared"]["grpo, seed 0"][0]["picture"][0] == "svg"


def test_settings_that_differ_are_listed_once_for_equal_runs(page: Page) -> None:
    assert "vpo, seed 0; vpo, seed 1" in page.text
    assert "ablation.prompt.m" in page.text


def test_markup_in_a_completion_never_leaves_its_data(tmp_path: Path) -> None:
    write_text_run(tmp_path / "run", HOSTILE, name="<b>vpo</b>")
    page = report(tmp_path)
    assert "hacked" not in "".join(page.scripts)
    assert len(page.scripts) == 4
    texts = [
        r["text"] for group in page.samples["rollouts"]["<b>vpo</b>"] for r in group["rollouts"]
    ]
    assert all(any(hostile in text for text in texts) for hostile in HOSTILE)
    assert "<b>vpo</b>" not in page.html
    assert "<b>vpo</b>" in page.text


def test_a_run_without_evaluation_shows_training_prompts_side_by_side(tmp_path: Path) -> None:
    write_maze_run(tmp_path / "run", steps=3, evaluates=False)
    page = report(tmp_path)
    assert "No evaluation yet" in page.text
    assert page.data["answers"] == []
    assert page.samples["compared"]["vpo"][0]["rewards"]


def test_a_run_that_crashed_is_reported_with_what_it_left(tmp_path: Path) -> None:
    folder = write_maze_run(tmp_path / "run", steps=3, evaluates=False)
    (folder / "summary.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "rollout/set_rew')
    (folder / "rollouts" / "step_000003_rank_0.parquet").write_bytes(b"PAR1 cut short")
    (folder / "eval.json").write_text("{")
    page = report(tmp_path)
    assert "unfinished" in page.text
    assert "rollouts/step_000003_rank_0.parquet could not be read" in page.text
    assert "eval.json could not be read" in page.text
    assert page.data["curves"][0]["series"]["vpo"]["x"] == [1, 2, 3]


def test_a_run_before_its_first_step_is_reported(tmp_path: Path) -> None:
    folder = write_maze_run(tmp_path / "run", steps=1, evaluates=False)
    for name in ("metrics.jsonl", "summary.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "rollouts")
    page = report(tmp_path)
    assert "no training step has ended yet" in page.text
    assert page.data["curves"] == []


def test_runs_of_different_tasks_and_objectives_share_a_page(tmp_path: Path) -> None:
    write_maze_run(tmp_path / "0_maze", steps=2)
    write_text_run(tmp_path / "1_toy", ["[1, 0]", "[0, 1]"])
    page = report(tmp_path)
    assert [run["label"] for run in page.data["runs"]] == ["vpo, maze", "vpo, vector"]
    charts = {chart["title"]: list(chart["series"]) for chart in page.data["curves"]}
    assert charts["gold"] == ["vpo, maze"]
    assert charts["x"] == ["vpo, vector"]
    assert set(page.data["slots"]) == {"vpo, maze", "vpo, vector"}


def test_a_dead_slot_is_named(tmp_path: Path) -> None:
    write_text_run(tmp_path / "run", ["[1, 1]", "[0.5, 0.5]"])
    slots = report(tmp_path).data["slots"]["vpo"]
    assert [row["is_dead"] for row in slots["slots"]] == [False, True]
    assert slots["winners"] == [1.0, 0.0]
    assert slots["map"] == [[1.0, 1.0], [0.0, 0.0]]


def test_slots_without_a_conflict_and_with_one_prompt_are_mapped(tmp_path: Path) -> None:
    write_text_run(tmp_path / "run", ["[1, 0]", "[0, 1]"])
    slots = report(tmp_path).data["slots"]["vpo"]
    assert slots["winners"] == [0.0, 1.0]
    assert slots["map"][0][0] == slots["map"][1][1] == 1.0


def test_searches_are_compared_at_equal_budget(tmp_path: Path) -> None:
    folder = write_maze_run(tmp_path / "run", steps=2)
    write_search(folder, "best_of_n", ["test-0", "test-1"])
    write_search(folder, "evolve", ["test-1", "test-2"])
    page = report(tmp_path)
    charts = {chart["unit"]: chart for chart in page.data["search"]}
    assert set(charts) == {"answers", "calls", "tokens", "seconds"}
    assert charts["tokens"]["series"]["vpo: evolve"]["x"] == [3, 9, 30]
    assert "vpo: best_of_n, not vpo: evolve: 1 (test-0)" in page.text
    assert "vpo: evolve, not vpo: best_of_n: 1 (test-2)" in page.text
    assert "30 10 1000" in page.text  # answers, calls, tokens with those of a judge


def test_searches_with_policies_of_no_run_are_compared_too(tmp_path: Path) -> None:
    run = write_maze_run(tmp_path / "run", steps=2)
    write_search(run, "best_of_n", ["test-0"])
    for name in ("best_of_n", "evolve"):  # as vpo-search policy=<model folder> leaves them
        write_search(tmp_path / "outputs", name, ["test-1"], policy_name="smollm2")
    unfinished = tmp_path / "outputs" / "search" / "mcts"
    unfinished.mkdir()
    (unfinished / "config.yaml").write_text("name: mcts\n")
    (unfinished / "events.jsonl").write_text("{}\n")
    page = report(tmp_path)
    charts = {chart["unit"]: chart for chart in page.data["search"]}
    assert list(charts["tokens"]["series"]) == [
        "smollm2: best_of_n",
        "smollm2: evolve",
        "vpo: best_of_n",
    ]
    assert "smollm2: evolve, not vpo: best_of_n: 1 (test-1)" in page.text
    statuses = {run["label"]: run["status"] for run in page.data["runs"]}
    assert statuses == {
        "vpo": "finished",
        "mcts": "unfinished",
        "smollm2: best_of_n": "searched",
        "smollm2: evolve": "searched",
    }
    assert "the search has not ended yet" in page.text
    assert report(tmp_path / "outputs" / "search").data["search"]


@pytest.mark.parametrize(
    ("first", "other", "alike"),
    [
        (
            "task: {size: 5}",
            "task: {size: 7}",
            "task: {size: 5, seed: 0}",
        ),  # a key of later versions
        ("solved: {scalar: 0.5}", "solved: {scalar: 1.0}", "solved: {scalar: 0.5}"),
    ],
    ids=["other prompts", "another rule of what is solved"],
)
def test_searches_that_were_asked_otherwise_are_not_compared(
    tmp_path: Path, first: str, other: str, alike: str
) -> None:
    for name, solved, asked in (("best_of_n", "test-0", first), ("evolve", "test-1", other)):
        write_search(tmp_path, name, [solved])
        config = tmp_path / "search" / name / "config.yaml"
        config.write_text(f"{asked}\nsplit: test\n")
    assert "never by the other" not in report(tmp_path).text
    config.write_text(f"{alike}\nsplit: test\n")
    assert "never by the other" in report(tmp_path).text


def test_every_objective_of_a_problem_has_a_chart() -> None:
    names = [f"tc_{i}" for i in range(16)]
    run = Run(Path("run"), metrics=[{"step": 1, **{f"rollout/{n}": 0.5 for n in names}}])
    run.label = "vpo"
    assert [chart["title"] for chart in curves([run], {"vpo": names})] == names


def test_a_folder_of_an_evaluation_is_a_run_without_training(sweep: Path, tmp_path: Path) -> None:
    shutil.copytree(sweep / "0_maze_vpo_seed0" / "pools", tmp_path / "eval" / "pools")
    shutil.copy(sweep / "0_maze_vpo_seed0" / "eval.json", tmp_path / "eval")
    shutil.copytree(sweep / "1_maze_grpo_seed0", tmp_path / "run")
    page = report(tmp_path)
    assert "evaluated" in page.text
    assert "What is missing" not in page.text
    assert {"eval", "grpo"} <= {run["method"] for run in page.data["runs"]}
    assert len(page.samples["compared"]["eval"]) == 8


def test_runs_of_another_task_do_not_enter_the_headline(sweep: Path, tmp_path: Path) -> None:
    shutil.copytree(sweep / "0_maze_vpo_seed0", tmp_path / "0_vpo")
    shutil.copytree(sweep / "1_maze_grpo_seed0", tmp_path / "1_grpo")
    path = tmp_path / "1_grpo" / "config.yaml"
    path.write_text(path.read_text().replace("size: 5", "size: 6"))
    assert "held-out prompts, against the start policy (start, single)" in report(tmp_path).text


def test_alarms_stand_at_the_top(tmp_path: Path) -> None:
    folder = write_maze_run(tmp_path / "run", steps=2)
    summary = json.loads((folder / "summary.json").read_text())
    alarm = {"name": "kl_runaway", "message": "KL is 0.7", "first_step": 3, "last_step": 9}
    (folder / "summary.json").write_text(json.dumps({**summary, "alarms": [alarm]}))
    assert "KL is 0.7 steps 3 to 9" in report(tmp_path).text


def test_a_task_that_cannot_be_built_here_is_noted(tmp_path: Path) -> None:
    write_text_run(tmp_path / "run", ["[1, 0]"], task={"_target_": "not_there.Task"})
    page = report(tmp_path)
    assert "no pictures: its task cannot be built here" in page.text
    assert page.samples["rollouts"]["vpo"]
    assert "cannot be built" not in report(tmp_path, "--no-pictures").text


def test_a_task_that_fails_to_draw_is_noted(tmp_path: Path) -> None:
    write_text_run(tmp_path / "run", ["[1, 0]"], task={"_target_": "tests.report.drawing.Clumsy"})
    assert "the task could not draw train-1: ZeroDivisionError" in report(tmp_path).text


def test_samples_are_thinned_until_the_page_is_small(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = report(sweep)
    from vpo_lightning.evaluation.report import contents
    from vpo_lightning.evaluation.report.browser import embedded

    def smaller(samples: dict[str, Any]) -> tuple[str, dict[str, int]]:
        return embedded(samples, 20_000)

    monkeypatch.setattr(contents, "embedded", smaller)
    thin = report(sweep)
    counts = [sum(map(len, page.samples["rollouts"].values())) for page in (whole, thin)]
    assert counts[1] < counts[0]
    assert len(json.dumps(thin.samples)) < len(json.dumps(whole.samples))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}"], "no run here"),
        (["{folder}/nowhere"], "no such folder"),
        (["{folder}", "--rollouts", "-1"], "--rollouts -1"),
        (["{folder}", "--watch", "--port", "99999"], "--port 99999"),
        (["{folder}", "--out", "{folder}"], "this is a folder"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([argument.format(folder=tmp_path) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
