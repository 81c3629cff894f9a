"""Images that cannot be used are found before training, and are left out if so asked."""

import io
import logging
import zlib

import numpy as np
import pytest
from PIL import Image
from support.made_data import a_model, all_of, folder_of, load, pixels, png, rows, tampered

from hf_cyclical.core import PruningError
from hf_cyclical.data import DataArguments, checking, decoding

CUT = png(pixels(1, 70, 70)[0])[:-4000]  # with a whole header


def tampered_with(split, problems):
    for row, data in problems.items():
        split = tampered(split, "picture", row, {"bytes": data, "path": f"{row}.png"})
    return split


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.INFO, "hf_cyclical")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def path(tmp_path):
    good = rows(pixels(30, 70, 70))
    bad = tampered_with(good, {3: b"no image", 11: None, 20: CUT})
    return folder_of(tmp_path / "d", train=bad, test=tampered_with(good, {7: b""}))


def test_headers_find_all_that_is_no_image(path, said):
    with pytest.raises(
        PruningError, match=r"^3 of 60 images cannot be used, the first is image 3 of split 'train' \(3"
    ):
        load(path)
    assert said() == [
        "image 3 of split 'train' (3.png) (not a known image format)",
        "image 11 of split 'train' (11.png) (the file is not there)",
        "image 7 of split 'test' (7.png) (not a known image format)",
    ]


def test_a_full_check_decodes(path, said):
    with pytest.raises(PruningError, match="4 of 60 images cannot be used"):
        load(path, check_images="full")
    assert any("image 20 of split 'train' (20.png) (image file is truncated" in line for line in said())


def test_they_are_left_out(path, said):
    data = load(path, check_images="full", skip_bad_images=True)
    assert said()[-2:] == [
        "3 of 30 images of split 'train' are left out",
        "1 of 30 images of split 'test' are left out",
    ]
    kept = [i for i in range(30) if i not in (3, 11, 20)]
    assert data.train.labels.tolist() == [i % 3 for i in kept]
    assert data.eval.labels.tolist() == [i % 3 for i in range(30) if i != 7]
    train, evaluation = data.for_model(a_model(), seed=0)
    assert len(all_of(train)["labels"]) == 27
    assert len(all_of(evaluation)["labels"]) == 29
    chosen = [np.asarray(image) for image in data.train.images[range(27)]]
    assert all(np.array_equal(image, pixels(30, 70, 70)[i]) for image, i in zip(chosen, kept, strict=True))


def test_small_images_are_decoded_by_every_check(tmp_path, said):
    split = tampered_with(rows(pixels(12)), {5: png(pixels(1)[0])[:-200]})
    with pytest.raises(PruningError, match="1 of 24 images cannot be used, the first is image 5 of split 'test'"):
        load(folder_of(tmp_path / "d", train=rows(pixels(12)), test=split))


def test_several_processes_find_the_same(path, said, monkeypatch):
    monkeypatch.setattr(checking, "FEWEST_PER_PROCESS", 10)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(PruningError, match="4 of 60 images cannot be used"):
        load(path, check_images="full")
    assert len(said()) == 4


def test_all_of_them_are_listed(tmp_path, said):
    split = tampered_with(rows(pixels(130, 70, 70)), dict.fromkeys(range(120), b"no"))
    with pytest.raises(PruningError, match="120 of 260 images cannot be used"):
        load(folder_of(tmp_path / "d", train=rows(pixels(130, 70, 70)), test=split))
    assert said() == [f"image {i} of split 'test' ({i}.png) (not a known image format)" for i in range(120)]


def test_of_several_processes_one_lists_them(path, said, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(PruningError, match="4 of 60 images cannot be used"):
        load(path, check_images="full")
    assert len(load(path, check_images="full", skip_bad_images=True).train.labels) == 27
    assert said() == []


def test_nothing_is_left(tmp_path):
    split = tampered_with(rows(pixels(3)), dict.fromkeys(range(3), b"no"))
    with pytest.raises(PruningError, match="none of the images of split 'test' can be used"):
        load(folder_of(tmp_path / "d", train=rows(pixels(6)), test=split), skip_bad_images=True)


def test_images_are_looked_at_once(tmp_path, monkeypatch):
    path = folder_of(tmp_path / "d", train=rows(pixels(12, 70, 70)), test=rows(pixels(6, 70, 70)))
    load(path)
    monkeypatch.setattr(checking, "problem", lambda *_, **__: pytest.fail("looked at again"))
    load(path)


def test_a_file_that_was_repaired_is_looked_at_again(tmp_path):
    for i, image in enumerate(pixels(8, 70, 70)):
        file = tmp_path / "d" / ("train" if i < 4 else "test") / ("ox", "yak")[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(file)
    broken = tmp_path / "d" / "train" / "ox" / "2.png"
    good = broken.read_bytes()
    broken.write_bytes(b"no image")
    with pytest.raises(PruningError, match=r"the first is image 1 of split 'train' \(.*/2.png\)"):
        load(tmp_path / "d")
    broken.write_bytes(good)
    assert len(load(tmp_path / "d").train.labels) == 4


def bomb(side):
    """A PNG of one colour, made without its pixels."""

    def chunk(kind, data):
        return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)

    packer = zlib.compressobj(9)
    row = bytes(1 + side // 8)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = side.to_bytes(4) * 2 + bytes([1, 0, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("check", ["headers", "full"])
def test_an_image_that_would_fill_the_memory_is_named(tmp_path, said, check, monkeypatch):
    large = bomb(8200)
    assert len(large) < 20_000
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("decoded"))
    with pytest.raises(ValueError, match="8,200 x 8,200 pixels, of which at most 67,108,864 are decoded"):
        decoding._read({"bytes": large, "path": None})
    monkeypatch.undo()
    split = tampered_with(rows(pixels(6, 70, 70)), {2: large})
    path = folder_of(tmp_path / "d", train=rows(pixels(6, 70, 70)), test=split)
    with pytest.raises(PruningError, match=r"image 2 of split 'test' \(2.png\) \(8,200 x 8,200 pixels"):
        load(path, check_images=check)
    _, evaluation = load(path, check_images="none").for_model(a_model(), seed=0)
    with pytest.raises(PruningError, match=r"image 2 of split 'test' \(2.png\) cannot be read \(8,200 x 8,200 pixels"):
        all_of(evaluation)
    _, stream = load(path, streaming=True).for_model(a_model(), seed=0)
    with pytest.raises(PruningError, match=r"image 2 read from the stream of split 'test' \(2.png\) cannot be read"):
        list(stream)
    assert said()[-1] == "the images of a stream are not checked before training"


@pytest.mark.parametrize("kind", ["jpeg", "webp", "tiff", "gif", "bmp"])
def test_headers_of_every_format(tmp_path, kind):
    """Also of those whose header is not in the first bytes."""
    file = io.BytesIO()
    Image.fromarray(pixels(1, 200, 200)[0]).save(file, kind)
    assert len(file.getvalue()) > decoding._HEAD
    for full in (False, True):
        assert decoding.problem({"bytes": file.getvalue(), "path": None}, full=full) is None


def test_a_turned_photograph_is_set_upright():
    image, file = Image.fromarray(pixels(1, 70, 90)[0]), io.BytesIO()
    exif = Image.Exif()
    exif[decoding._ORIENTATION] = 6
    image.save(file, "png", exif=exif)
    seen = decoding.decode({"bytes": file.getvalue(), "path": None}, "it")
    assert np.array_equal(seen, np.rot90(np.asarray(image), -1))


def test_what_is_contradictory():
    with pytest.raises(PruningError, match="check_images is 'all': use headers, full or none"):
        DataArguments(check_images="all")
    with pytest.raises(PruningError, match="skip_bad_images has no effect with check_images none"):
        DataArguments(check_images="none", skip_bad_images=True)
    with pytest.raises(PruningError, match="skip_bad_images has no effect with streaming"):
        DataArguments(streaming=True, skip_bad_images=True)
