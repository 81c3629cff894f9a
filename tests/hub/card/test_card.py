"""What a card says, and what it leaves out."""

from dataclasses import replace

import pytest
from support.card_reading import assert_whole, front, rows, sections
from support.made_reports import with_metric

from hf_cyclical.hub import render_card
from hf_cyclical.reports import final_metrics

# What it says --------------------------------------------------------------------------------------------------------


def test_a_full_card_has_every_section_in_order(report, metadata):
    card = render_card(
        report, metadata, library="timm", repo_id="me/small", files={"dense": 10_400, "packed": 1_300}, license="mit"
    )
    assert_whole(card)
    assert sections(card) == [
        "Dense against pruned",
        "How sparse",
        "How it went",
        "Layers",
        "Files",
        "Load it",
        "Check it",
        "Train it further and keep the zeros",
        "How it was made",
    ]
    assert "\n# `timm/resnet18.a1_in1k`, 90 % sparse\n" in card
    assert "trained on `uoft-cs/cifar10`" in card
    assert "in each of 2 cycles" in card
    assert f"[`timm/resnet18.a1_in1k`](https://huggingface.co/timm/resnet18.a1_in1k), revision `{'0' * 40}`" in card
    assert "(https://arxiv.org/abs/2202.01290)" in card
    assert "unstructured zeros make files small, and not dense hardware fast" in card
    assert "](pruning_run.png)" in card


def test_the_numbers_are_those_of_report_and_record(report, metadata):
    card = render_card(report, metadata, files={"dense": 10_400, "packed": 1_300})
    assert rows(card, "Dense against pruned") == [
        ["", "accuracy", "sparsity"],
        ["dense", "84.00 %", "0.00 %"],
        ["**this model**", "**80.00 %**", "90.00 %"],
        ["recovery (this model / dense)", "95.24 %", ""],  # 80 / 84
    ]
    assert rows(card, "How sparse")[1:] == [
        ["over the weights that can be pruned", "1,800", "2,000", "90.00 %"],
        ["over all weights", "1,800", "2,500", "72.00 %"],
    ]
    assert rows(card, "How it went")[1:] == [
        ["dense", "84.00 %", "0.00 %", "", "", ""],
        ["cycle 1", "75.00 %", "90.00 %", "0.00 %", "0.000", "0"],
        ["cycle 2", "80.00 %", "90.00 %", "1.00 %", "0.200", "1,007"],
    ]
    assert rows(card, "Layers")[1:] == [
        ["`conv.weight`", "10 x 20 x 9", "1,800", "1,500", "83.33 %"],
        ["`fc.weight`", "20 x 10", "200", "200", "100.00 %"],
    ]
    assert rows(card, "Files")[1:] == [["dense", "10.4 kB", ""], ["packed", "1.3 kB", "12.5 %"]]


def test_yaml(report, metadata):
    data = front(render_card(report, metadata, library="timm", repo_id="me/small", license="mit"))
    assert data == {
        "library_name": "timm",
        "pipeline_tag": "image-classification",
        "license": "mit",
        "base_model": "timm/resnet18.a1_in1k",
        "base_model_relation": "finetune",
        "datasets": ["uoft-cs/cifar10"],
        "metrics": ["accuracy"],
        "tags": ["hf_cyclical", "pruned", "sparse", "unstructured-sparsity", "sparsity-90"],
        "model-index": [
            {
                "name": "small",
                "results": [
                    {
                        "task": {"type": "image-classification"},
                        "dataset": {"type": "uoft-cs/cifar10", "name": "uoft-cs/cifar10"},
                        "metrics": [{"type": "accuracy", "name": "accuracy at 90 % sparsity", "value": 0.8}],
                    }
                ],
            }
        ],
    }


@pytest.mark.parametrize(
    ("sparsity", "tag"), [(0.95, "95"), (0.94997, "95"), (0.975, "97.5"), (0.99996, "99.9"), (0.5, "50")]
)
def test_the_tag_says_the_sparsity_and_never_100(report, metadata, sparsity, tag):
    metadata["achieved"]["sparsity"] = sparsity
    assert front(render_card(report, metadata))["tags"][-1] == f"sparsity-{tag}"


def test_how_to_load_each_kind(report, metadata):
    timm = render_card(report, metadata, library="timm", repo_id="me/small", files={"dense": 9, "packed": 5})
    assert 'timm.create_model("hf-hub:me/small", pretrained=True)' in timm
    assert 'AutoModelForImageClassification.from_pretrained("me/small")' in timm
    assert "import hf_cyclical  # unpacks the weights" in timm
    assert 'from_pretrained("me/small", revision="packed")' in timm
    assert "hf-cyclical verify me/small\n" in timm
    assert 'PruningConfig(method="freeze")' in timm
    assert "registers" not in timm
    other = render_card(report, metadata, library="transformers", repo_id="me/small")
    assert "create_model" not in other
    assert "packed" not in other.lower()
    assert 'AutoModelForImageClassification.from_pretrained("me/small")' in other


def test_no_processor_is_loaded_where_there_is_none(report, metadata):
    card = render_card(report, metadata, repo_id="me/small", processor=False)
    assert_whole(card)
    assert "AutoImageProcessor" not in card
    assert "```python\nfrom transformers import AutoModelForImageClassification\n\nmodel = AutoModel" in card


def test_a_rank_over_all_layers_is_told(report, metadata):
    for scope, told in (("local", False), ("global", True), ("lamp", True)):
        changed = replace(report, config={**report.config, "scope": scope})
        assert ("some layers are sparser than others" in render_card(changed, metadata)) == told


def test_a_floor_of_the_rows_is_an_exception_from_the_same_sparsity(report, metadata):
    alike, more = "Every layer was pruned to the same sparsity, except for rounding", "and except where the floor of"
    for floor in (None, 0):  # an earlier version had none
        card = render_card(replace(report, config={**report.config, "row_floor": floor}), metadata)
        assert f" {alike}.\n" in card
    card = render_card(replace(report, config={**report.config, "row_floor": 2}), metadata)
    kept = "Every filter and every output kept at least 2 of its weights."
    assert f" {alike}, {more} the rows keeps more. {kept}\n" in card
    for share in ("global", "lamp", "erk"):
        config = {**report.config, "scope": None, "share": share, "row_floor": 2}
        card = render_card(replace(report, config=config), metadata)
        assert kept in card
        assert more not in card


@pytest.mark.parametrize(("architecture", "model"), [("cifar_vgg14", "trained"), (None, "cifar_vgg14")])
def test_architectures_of_this_package_are_imported(report, metadata, architecture, model):
    report = replace(report, about={**report.about, "model": model})
    card = render_card(report, metadata, library="timm", repo_id="me/small", architecture=architecture)
    assert card.count("```python\nimport hf_cyclical  # registers cifar_vgg14 in timm\n") == 2


def test_without_a_repository_it_speaks_of_the_folder(report, metadata):
    card = render_card(report, metadata, library="timm", files={"dense": 9, "packed": 5})
    assert_whole(card)
    assert 'timm.create_model("local-dir:.", pretrained=True)' in card
    assert "hf-cyclical verify .\n" in card
    assert "branch" not in card
    assert "revision=" not in card


def test_how_it_was_made(report, metadata):
    report = replace(report, config={**report.config, "exclude": ["*.conv1", "fc*"]})
    made = render_card(report, metadata).split("## How it was made\n")[1]
    assert "```bash\naccelerate launch scripts/prune.py --seed 3\n```" in made
    assert "100 updates, with seed 3, in 2 processes." in made
    assert "| `target_sparsity` | `0.9` |" in made
    assert "| `exclude` | `*.conv1, fc*` |" in made
    assert "Versions: `torch 2.9`, `timm 1.0`." in made


def test_no_folder_of_this_machine_is_told(report, metadata):
    folder = "/home/alice/secret project/resnet"
    command = f"prune.py --model_name_or_path '{folder}' --output_dir=/home/alice/out --dataset ~/data/pets"
    about = {**report.about, "model": folder, "dataset": "~/data/pets/", "command": command}
    report = replace(report, about=about)
    metadata["base_model"] = {"id": folder, "revision": None}
    card = render_card(report, metadata)
    assert_whole(card)
    assert "alice" not in card
    assert "~" not in card
    assert "# `resnet`, 90 % sparse" in card
    assert "prune.py --model_name_or_path resnet --output_dir=out --dataset pets\n" in card
    assert "base_model" not in front(card)
    assert "datasets" not in front(card)
    assert front(card)["model-index"][0]["results"][0]["dataset"] == {"name": "pets", "type": "pets"}


# What it leaves out --------------------------------------------------------------------------------------------------


def test_nothing_is_said_of_what_is_not_known(report, metadata):
    report = replace(report, about={}, dense={}, evaluations=(), masks=(), cycles=())
    metadata |= {"base_model": None, "weights": None, "tensors": []}
    del metadata["mask_sha256"]
    card = render_card(report, metadata, figure=None)
    assert_whole(card)
    assert sections(card) == [
        "How sparse",
        "Load it",
        "Check it",
        "Train it further and keep the zeros",
        "How it was made",
    ]
    assert "# Image classifier, 90 % sparse" in card
    assert set(front(card)) == {"library_name", "pipeline_tag", "tags"}
    assert "hash" not in card
    assert "```bash\naccelerate" not in card
    assert "![" not in card


def test_no_recovery_without_a_dense_measurement(report, metadata):
    report = replace(report, dense={})
    card = render_card(report, metadata)
    assert_whole(card)
    assert [row[0] for row in rows(card, "Dense against pruned")] == ["", "**this model**"]
    assert "The first row" not in card


def test_no_results_without_a_measurement_or_a_dataset(report, metadata):
    report = replace(report, about={**report.about, "dataset": None})
    card = render_card(report, metadata)
    assert "model-index" not in front(card)
    assert "on the evaluation images of the run, in one run (seed 3)" in card
    report = replace(report, about={**report.about, "dataset": "digits"})
    assert "model-index" in front(render_card(report, metadata))
    last = replace(report.cycles[-1], metrics={"accuracy": float("nan")})
    report = replace(report, evaluations=(), cycles=(*report.cycles[:-1], last))
    card = render_card(report, metadata)
    assert "model-index" not in front(card)
    assert "metrics" not in front(card)
    assert "Dense against pruned" not in sections(card)


def test_the_file_of_the_record_is_shown_where_no_sizes_are_given(report, metadata):
    card = render_card(report, metadata)
    assert rows(card, "Files") == [["weights", "size"], ["dense", "10.4 kB"]]


# Which weights the model has -----------------------------------------------------------------------------------------


def test_the_chosen_weights_are_the_ones_described(report, metadata):
    report = replace(report, chosen_update=50)
    card = render_card(report, metadata)
    assert final_metrics(report) == {"loss": 0.5, "accuracy": 0.75}
    assert rows(card, "Dense against pruned")[2][1] == "**75.00 %**"
    assert "those of update 50, chosen as the best" in card
    assert "took 50 updates more" in card


def test_a_run_stopped_inside_a_cycle_claims_nothing(report, metadata):
    report = replace(report.with_masks(100, 0.45, 0.4), updates=150)  # the first choice of a third cycle
    assert final_metrics(report) == {}
    card = render_card(report, metadata)
    assert "Dense against pruned" not in sections(card)
    assert "Planned for 150 updates, with seed 3, in 2 processes, and stopped before." in card


def test_a_model_that_was_sparse_before(report, metadata):
    report = replace(report, config={"method": "freeze", "cycles": 1, "scope": "global"}, start_sparsity=0.9)
    card = render_card(report, metadata)
    assert_whole(card)
    assert "ranked together" not in card
    assert "It had these zeros before" in card
    assert "Dense against pruned" not in sections(card)
    assert rows(card, "Before and after this run")[1] == ["before this run", "84.00 %", "90.00 %"]
    assert rows(card, "Before and after this run")[3][0] == "recovery (this model / before this run)"
    assert "is the model as this run found it. Training it with its zeros kept took 100 updates, which" in card
    assert "Pruning it took" not in card


def test_another_metric_has_no_recovery(report, metadata):
    card = render_card(with_metric(report, "mae"), metadata)
    assert_whole(card)
    assert rows(card, "Dense against pruned") == [
        ["", "mae", "sparsity"],
        ["dense", "0.84", "0.00 %"],
        ["**this model**", "**0.8**", "90.00 %"],
    ]
    assert front(card)["metrics"] == ["mae"]


def test_a_rate_is_in_percent_and_has_a_recovery(report, metadata):
    assert rows(render_card(with_metric(report, "f1"), metadata), "Dense against pruned")[1:] == [
        ["dense", "84.00 %", "0.00 %"],
        ["**this model**", "**80.00 %**", "90.00 %"],
        ["recovery (this model / dense)", "95.24 %", ""],
    ]


@pytest.mark.parametrize(
    ("method", "cycles", "said"),
    [
        ("cyclical", 1, "pruned gradually: the sparsity rose once"),
        ("iterative", 1, "pruned at once"),
        ("iterative", 4, "in 4 equal steps"),
        ("cyclical_lr", 3, "in the first of 3 cycles"),
        ("pgd", None, "projected gradient descent"),
    ],
)
def test_each_method_is_described(report, metadata, method, cycles, said):
    report = replace(report, config={**report.config, "method": method, "cycles": cycles})
    assert said in render_card(report, metadata)


@pytest.mark.parametrize(
    ("method", "said", "shared"),
    [
        ("rigl", "at constant sparsity (RigL)", "to the same sparsity"),
        ("snfs", "sparse momentum, SNFS", "Weights moved between the layers"),
        ("dpf", "gradually with feedback (DPF)", "to the same sparsity"),
        ("granet", "gradually (GraNet)", "to the same sparsity"),
    ],
)
def test_each_rival_is_described(report, metadata, method, said, shared):
    report = replace(report, config={**report.config, "method": method, "share": "uniform"})
    text = render_card(report, metadata)
    assert said in text
    assert shared in text
    assert ("to the same sparsity" in text) == (method != "snfs")


def test_many_layers_are_shortened(report, metadata):
    tensor = metadata["tensors"][0]
    metadata["tensors"] = [tensor | {"name": f"blocks.{i}.weight"} for i in range(100)]
    table = rows(render_card(report, metadata), "Layers")[1:]
    names = [row[0] for row in table]
    assert names[29:32] == ["`blocks.29.weight`", "... 40 more ...", "`blocks.70.weight`"]
    assert len(names) == 61
    assert "The first and the last 30; `sparsity.json` has all 100." in render_card(report, metadata)
    metadata["tensors"] = metadata["tensors"][:60]
    assert len(rows(render_card(report, metadata), "Layers")) == 61
