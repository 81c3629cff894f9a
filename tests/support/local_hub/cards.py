"""The metadata of model cards as the Hub checks it."""

import re

import yaml

RELATIONS = ("adapter", "merge", "quantized", "finetune")
_LICENSES = (
    "apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m"
    " afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0"
    " cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0"
    " cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0"
    " cdla-permissive-1.0 cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl"
    " gpl gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr"
    " mpl-2.0 odc-by odbl openmdw-1.0 openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr"
    " deepfloyd-if-license fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4"
    " grok2-community gemma unknown other"
)
LICENSES = frozenset(_LICENSES.split())
FRONT = re.compile(r"---[\r\n]+(.*?)[\r\n]+---(?:[\r\n]|$)", re.DOTALL)
LISTS = ("base_model", "datasets", "language", "license", "metrics")  # or one string
STRINGS = ("base_model_relation", "library_name", "license_link", "license_name", "pipeline_tag")


class _UniqueKeys(yaml.SafeLoader):
    """The Hub refuses a key that is given twice, PyYAML takes the last."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if len(keys) != len(set(keys)):
            raise yaml.YAMLError("duplicated mapping key")
        return super().construct_mapping(node, deep)


def card_data(text: str) -> dict:
    """The metadata of a card; empty where it has none or cannot be read."""
    try:
        data = _load(text)
    except yaml.YAMLError:
        return {}
    return data if isinstance(data, dict) else {}


def card_errors(text: str) -> list[str]:
    try:
        data = _load(text)
    except yaml.YAMLError as error:
        return [f"YAML metadata cannot be read: {error}"]
    if data is None:
        return []
    if not isinstance(data, dict):
        return ["YAML metadata must be an object"]
    return [*_field_errors(data), *_index_errors(data.get("model-index", []))]


def card_warnings(text: str) -> list[str]:
    return [] if FRONT.match(text) else ["empty or missing yaml metadata in repo card"]


def _load(text):
    front = FRONT.match(text)
    return yaml.load(front[1], _UniqueKeys) if front else None  # noqa: S506 - a SafeLoader


def _field_errors(data):
    tags = data.get("tags", [])
    if not isinstance(tags, list):
        yield '"tags" must be an array'
    else:
        yield from (f'"tags[{i}]" must be a string' for i, tag in enumerate(tags) if not isinstance(tag, str))
    for key in LISTS:
        values = data.get(key, [])
        values = values if isinstance(values, list) else [values]
        yield from (f'"{key}" must be a string or strings' for value in values if not isinstance(value, str))
    yield from (f'"{key}" must be a string' for key in STRINGS if key in data and not isinstance(data[key], str))
    if data.get("base_model_relation", RELATIONS[0]) not in RELATIONS:
        yield f'"base_model_relation" must be one of {list(RELATIONS)}'
    if isinstance(data.get("license"), str) and data["license"] not in LICENSES:
        yield f'"license" must be one of {sorted(LICENSES)}'
    bases = data.get("base_model", [])
    for base in bases if isinstance(bases, list) else [bases]:
        if isinstance(base, str) and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base):
            yield f'"base_model" with value "{base}" is not valid. Use a model id from the Hub'


def _index_errors(index):
    if not isinstance(index, list):
        yield '"model-index" must be an array'
        return
    for i, model in enumerate(index):
        where = f"model-index[{i}]"
        yield from _missing(model, where, name=str, results=list)
        for j, result in enumerate(_get(model, "results", list)):
            yield from _result_errors(result, f"{where}.results[{j}]")


def _result_errors(result, where):
    yield from _missing(result, where, task=dict, dataset=dict, metrics=list)
    yield from _missing(_get(result, "task", dict), f"{where}.task", type=str)
    yield from _missing(_get(result, "dataset", dict), f"{where}.dataset", type=str, name=str)
    for k, metric in enumerate(_get(result, "metrics", list)):
        yield from _missing(metric, f"{where}.metrics[{k}]", type=str, value=(int, float, str, dict, list))


def _get(data, key, kind):
    """The value, or an empty one where what is there is of another kind."""
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, kind) else kind()


def _missing(data, where, **kinds):
    if not isinstance(data, dict):
        yield f'"{where}" must be an object'
        return
    for key, kind in kinds.items():
        if key not in data:
            yield f'"{where}.{key}" is required'
        elif not isinstance(data[key], kind):
            yield f'"{where}.{key}" is of the wrong type'
