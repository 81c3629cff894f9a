"""The model card: README.md of a pruned model, filled only from the report of its run and from sparsity.json."""

import dataclasses
from typing import Any
from urllib.parse import quote

import timm
from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_cyclical.config import current_settings
from hf_cyclical.core import NofM, Pattern, PruningError, pattern_of
from hf_cyclical.formats import CLASSIFICATION, Task, last_part, public_about
from hf_cyclical.methods import METHODS, SHARES
from hf_cyclical.reports import PruningReport, final_metrics, finite, is_rate, show

from .markdown import Markdown, clean, code, environment, word

CARD_NAME = "README.md"
TAGS = ["hf_cyclical", "pruned", "sparse"]
_MOVED = "Weights moved between the layers, so that some are sparser than others."
_MOST_LAYERS = 60  # in the table of the card


def render_card(
    report: PruningReport,
    metadata: dict[str, Any],
    *,
    library: str = "transformers",
    architecture: str | None = None,
    repo_id: str | None = None,
    files: dict[str, int] | None = None,
    figure: str | None = "pruning_run.png",
    license: str | None = None,
    processor: bool = True,
    multiply_adds: dict[str, Any] | None = None,
    speed: dict[str, Any] | None = None,
    task: Task = CLASSIFICATION,
) -> str:
    """The README.md of a pruned model, with its YAML.

    Args:
        report: The run.
        metadata: The content of sparsity.json.
        library: `timm` if the files are in timm's layout, which transformers reads too, or `transformers`.
        architecture: timm's name of the architecture; if not given, the model's name is taken for it.
        repo_id: Where the model is on the Hub; if not given, the card speaks of the folder it is in.
        files: Bytes of the weights as measured, by layout: `dense`, and `packed` if there is a branch of that name.
        figure: Name of the plot beside the card; none if there is none.
        license: Of the base model, as the Hub spells it; the card says nothing of it if not given.
        processor: Whether transformers finds an image processor beside the model.
        multiply_adds: For one image, `dense` and `sparse`, and the `shape` of it; nothing is said if not given.
        speed: As `read_speed` gives it; nothing is said if not given.
        task: What the model is for.

    Raises:
        PruningError: If `repo_id` cannot be one, or if the library or the method is another.
    """
    if library not in ("timm", "transformers"):
        raise PruningError(f"library {library!r} is unknown to cards: use timm or transformers")
    if repo_id is not None and not _is_hub_id(repo_id):
        raise PruningError(f"repo_id {repo_id!r} cannot be one: use owner/name, of letters, digits, -, _ and .")
    report = dataclasses.replace(report, about=public_about(report.about))
    data = _card_data(report, metadata, library=library, repo_id=repo_id, license=license, task=task)
    values = {
        "yaml": Markdown(data.to_yaml()),
        "library": library,
        "task": {name: Markdown(getattr(task, name)) for name in ("noun", "auto_class", "measured_on", "article")},
        "processor": processor,
        "keeping_zeros": Markdown(next(name for name, row in METHODS.items() if row.keeps_zeros)),
        "registered": _registered(architecture or report.about.get("model")),
        "repo": Markdown(repo_id or "."),
        "on_hub": repo_id is not None,
        "files": {"dense": None, "packed": None} | (files or _file_of(metadata)),
        "multiply_adds": multiply_adds,
        "speed": speed,
        "figure": Markdown(quote(figure)) if figure else None,
    }
    values |= _of_run(report, task) | _of_model(report, metadata)
    return environment().get_template("card.md.jinja").render(values)


# YAML ----------------------------------------------------------------------------------------------------------------


def _card_data(
    report: PruningReport,
    metadata: dict[str, Any],
    *,
    library: str,
    repo_id: str | None,
    license: str | None,
    task: Task,
) -> ModelCardData:
    base, dataset = (metadata.get("base_model") or {}).get("id"), report.about.get("dataset")
    on_hub = _is_hub_id(base)
    sparsity = _sparsity_tag(metadata["achieved"]["sparsity"])
    results = _results(report, dataset, sparsity, task)
    return ModelCardData(
        library_name=library,
        pipeline_tag=task.tag,
        license=clean(license) if license else None,
        base_model=base if on_hub else None,
        base_model_relation="finetune" if on_hub else None,  # there is no value for pruned
        datasets=[dataset] if _is_hub_id(dataset) else None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        tags=[*TAGS, *_pattern_tags(report.config), f"sparsity-{sparsity}"],
        model_name=(repo_id or _name(report, metadata) or "model").rpartition("/")[2] if results else None,
        eval_results=results or None,
    )


def _results(report: PruningReport, dataset: str | None, sparsity: str, task: Task) -> list[EvalResult]:
    """What was measured, as the Hub reads it; it takes no result without the name of a dataset.

    Nothing if it was measured on training images that were held out, as a result is taken for that of a test set.
    """
    if not dataset or report.about.get("holdout"):
        return []
    final = final_metrics(report)
    return [
        EvalResult(
            task_type=task.tag,
            dataset_type=dataset if _is_hub_id(dataset) else _short(dataset),
            dataset_name=_short(dataset),
            metric_type="accuracy" if name.endswith("accuracy") else clean(name),
            metric_name=f"{clean(name)} at {sparsity} % sparsity",
            metric_value=round(final[name], 4),
        )
        for name in _shown_metrics(report, final, task)
    ]


def _sparsity_tag(sparsity: float) -> str:
    return f"{min(round(100 * sparsity, 1), 99.9):g}"


def _pattern_tags(config: dict[str, Any]) -> list[str]:
    """How the zeros are arranged; nothing of zeros that were there before."""
    if config.get("method") in METHODS and METHODS[config["method"]].keeps_zeros:
        return []
    if not config.get("pattern"):
        return ["unstructured-sparsity"]
    kind = "semi-structured-sparsity" if isinstance(_pattern(config), NofM) else "block-sparsity"
    return [kind, config["pattern"]]


def _is_hub_id(name: Any) -> bool:
    """Whether a name looks like one of the Hub, with an owner; a folder inside the current one can look so too."""
    if not isinstance(name, str) or name.count("/") != 1:
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


# Sections ------------------------------------------------------------------------------------------------------------


def _of_run(report: PruningReport, task: Task) -> dict[str, Any]:
    """What the template says of the run."""
    about, ends = report.about, [c.update for c in report.cycles]
    return {
        "report": report,
        "seed": about.get("seed"),
        "processes": about.get("processes") or 1,
        "versions": about.get("versions") or {},
        "dataset": _short(about["dataset"]) if about.get("dataset") else None,
        "method": _method(report.config),
        "share": _share(report.config),
        "evaluation": _evaluation(report, task),
        "trained": (report.chosen_update or (ends[-1] if ends else report.updates)) - report.dense_updates,
        "cycles": _cycles(report),
        "whole": report.updates in ends,
        "command": about.get("command"),
        "settings": _settings(report.config),
    }


def _of_model(report: PruningReport, metadata: dict[str, Any]) -> dict[str, Any]:
    """What the template says of the model as it is."""
    base, pattern = metadata.get("base_model") or {}, _pattern(report.config)
    return {
        "name": _name(report, metadata),
        "base": base if _is_hub_id(base.get("id")) else None,
        "achieved": metadata["achieved"],
        "pattern": pattern if report.config.get("pattern") else None,
        "unfit": [entry["name"] for entry in metadata["tensors"] if pattern.covers(entry["shape"]) != entry["weights"]],
        "tensors": _shortened(metadata["tensors"]),
        "left_out": max(0, len(metadata["tensors"]) - _MOST_LAYERS),
        "mask_sha256": metadata.get("mask_sha256"),
    }


def _file_of(metadata: dict[str, Any]) -> dict[str, int]:
    weights = metadata.get("weights")
    return {weights["layout"]: weights["bytes"]} if weights else {}


def _method(config: dict[str, Any]) -> Markdown:
    method, cycles = config.get("method"), config.get("cycles") or 1
    if method not in list(METHODS):
        raise PruningError(f"method {method!r} is unknown to cards: use one of {', '.join(METHODS)}")
    row = METHODS[(cycles == 1 and METHODS[method].with_one_cycle) or method]
    return Markdown(row.sentence.format(cycles=cycles))


def _share(config: dict[str, Any]) -> Markdown | None:
    """How the zeros are shared out among the layers; nothing of zeros that were there before."""
    settings = current_settings(config)
    row, floor = METHODS[config["method"]], settings.get("row_floor")
    if settings.get("share") not in list(SHARES) or row.keeps_zeros:
        return None
    share, floored = SHARES[settings["share"]], isinstance(floor, int) and floor > 0
    moved = row.redistributes and _pattern(config).sparsity is None
    sentence = _MOVED if moved else (floored and share.floored) or share.sentence
    if isinstance(targets := settings.get("layer_sparsity"), list):
        sentence += f" Some layers had targets of their own: {code(', '.join(map(str, targets)))}."
    if floored:
        sentence += f" Every filter and every output kept at least {floor} of its weights."
    return Markdown(sentence)


def _pattern(config: dict[str, Any]) -> Pattern:
    return pattern_of(config.get("pattern"))


def _name(report: PruningReport, metadata: dict[str, Any]) -> str | None:
    name = report.about.get("model") or (metadata.get("base_model") or {}).get("id")
    return _short(name) if name else None


def _short(name: str) -> str:
    """A Hub id as it is; of a folder the last part, as the rest is of one machine only."""
    return clean(name if _is_hub_id(name) else last_part(name).rpartition("/")[2])


def _shown_metrics(report: PruningReport, final: dict[str, float], task: Task) -> list[str]:
    """Those of the task where there are any, else the report's metric."""
    of_task = [name for end in task.metrics for name in final if name.endswith(end)]
    return of_task or [name for name in final if name == report.metric]


def _evaluation(report: PruningReport, task: Task) -> list[dict[str, Any]]:
    """For each metric its value before and now, and what part of it was kept."""
    dense, final = finite(report.dense), final_metrics(report)
    rows = []
    for name in _shown_metrics(report, final, task):
        before, now = dense.get(name), final[name]
        kept = now / before if is_rate(name) and before else None
        rows.append({"name": name, "before": before, "now": now, "kept": kept})
    return rows


def _cycles(report: PruningReport) -> list[list[Any]]:
    """The report's table as rows of cells, the head first."""
    metric = report.metric
    head = ["", *([word(metric)] if metric else []), "sparsity", "regrown", "mask distance", "recovered"]
    rows = []
    if metric and report.initial:
        initial = show(report.initial.get(metric), metric)
        rows.append(["initial", initial, show(report.start_sparsity), "", "", ""])
    if metric and report.dense:
        before = "before" if report.start_sparsity else "dense"
        rows.append([before, show(report.dense.get(metric), metric), show(report.start_sparsity), "", "", ""])
    for c in report.cycles:
        shown = [show(c.metrics.get(metric), metric)] if metric else []
        measures = [show(c.sparsity), show(c.regrown), f"{c.mask_distance:.3f}", f"{c.recovered:,}"]
        rows.append([f"cycle {c.cycle}", *shown, *measures])
    return [[Markdown(cell) for cell in row] for row in [head, *rows]] if report.cycles else []


def _shortened(tensors: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """The tensors, or the first and the last of them with `None` for those between."""
    if len(tensors) <= _MOST_LAYERS:
        return list(tensors)
    half = _MOST_LAYERS // 2
    return [*tensors[:half], None, *tensors[-half:]]


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """What the run was told, without what does not apply."""
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in config.items()
        if value is not None and (value or not name.startswith("dense_"))
    }


def _registered(architecture: str | None) -> str | None:
    """The name of an architecture that timm has only after `import hf_cyclical`."""
    name = (architecture or "").rpartition("/")[2].partition(".")[0]
    ours = timm.is_model(name) and timm.model_entrypoint(name).__module__.startswith("hf_cyclical.")
    return Markdown(name) if ours else None
