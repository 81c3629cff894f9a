"""Data sets made for the tests."""

import io
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import ClassLabel, Dataset, Features, Image, Value
from PIL import Image as PILImage
from torchvision.transforms import v2

from hf_cyclical.data import DataArguments, load_image_data

NAMES = ["ant", "bee", "cow"]
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def a_model(size=16, interpolation="bilinear", crop_pct=1.0):
    """What data sets ask of a model, with a processor of torchvision's steps for PIL images."""
    settings = SimpleNamespace(size=size, mean=MEAN, std=STD, interpolation=interpolation)
    mode = {"nearest": "nearest-exact"}.get(interpolation, interpolation)
    known = mode if mode in {m.value for m in v2.InterpolationMode} else "bilinear"
    steps = [v2.Resize(int(size / crop_pct), interpolation=v2.InterpolationMode(known)), v2.CenterCrop(size)]
    steps += [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.ToPureTensor()]

    def processor(images, *, return_tensors):
        assert return_tensors == "pt"
        assert isinstance(images, PILImage.Image)
        return {"pixel_values": v2.Compose(steps)(images)[None]}

    return SimpleNamespace(settings=settings, processor=processor)


def pixels(n, height=16, width=16, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, height, width, 3), dtype=np.uint8)


def png(array):
    file = io.BytesIO()
    PILImage.fromarray(array).save(file, "png")
    return file.getvalue()


def rows(images, labels=None, label_type=None, image="picture", label="kind", **others):
    """A data set with odd column names; the first column is none that is looked for."""
    columns = {"remark": [0.5] * len(images), image: [{"bytes": png(i), "path": None} for i in images]}
    columns[label] = [i % len(NAMES) for i in range(len(images))] if labels is None else labels
    features = {"remark": Value("float32"), image: Image(), label: label_type or ClassLabel(names=NAMES)}
    for name, (values, kind) in others.items():
        columns[name], features[name] = values, kind
    return Dataset.from_dict(columns, features=Features(features))


def tampered(split, column, row, value):
    """The same rows with a value in them that `datasets` would not let in."""
    table = split if isinstance(split, pa.Table) else split.data.table
    field = table.schema.field(column)
    values = table.column(column).to_pylist()
    values[row] = value
    return table.set_column(table.schema.get_field_index(column), field, pa.array(values, field.type))


def folder_of(path, **splits):
    """A folder of parquet files; a list makes several files of a split."""
    path.mkdir(exist_ok=True)
    for name, parts in splits.items():
        parts = parts if isinstance(parts, list) else [parts]
        for i, part in enumerate(parts):
            file = path / f"{name}-{i:05d}-of-{len(parts):05d}.parquet"
            if not len(part):  # which datasets 5.1 cannot write
                pq.ParquetWriter(file, part.data.table.schema).close()
            else:
                pq.write_table(part, file) if isinstance(part, pa.Table) else part.to_parquet(file)
    return str(path)


def load(path, seed=42, **arguments):
    return load_image_data(DataArguments(dataset_name=str(path), **arguments), seed=seed)


def all_of(dataset):
    return dataset.__getitems__(list(range(len(dataset))))


def as_model_takes(array, size=None):
    """The oracle of evaluation: torchvision, one PIL image at a time."""
    steps = [] if size is None else [v2.Resize(size), v2.CenterCrop(size)]
    steps += [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose(steps)(PILImage.fromarray(array))
