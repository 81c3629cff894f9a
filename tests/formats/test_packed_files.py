"""Packed files: lossless, within the bound, and nothing in them can be changed unnoticed."""

import json
import math
import random

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.odd_dtypes import BITS, with_dtype
from support.sparse_weights import bits, same_tensors, sparse

from hf_cyclical import PruningError
from hf_cyclical.formats import encode, is_packed, pack_file, read_packed, unpack_file

KEY = "hf_cyclical_packed"


@pytest.fixture
def tensors():
    return {
        "conv.weight": sparse(8, 4, 3, 3),
        "half.weight": sparse(16, 32, dtype=torch.bfloat16),
        "norm.weight": torch.ones(8),
        "norm.tracked": torch.tensor(3),
        "zeros": torch.zeros(64, 8),
    }


@pytest.fixture
def packed(tmp_path, tensors):
    """The path of a packed file; the dense one is beside it."""
    save_file(tensors, tmp_path / "dense.safetensors", {"format": "pt", "hf_cyclical": "{}"})
    pack_file(tmp_path / "dense.safetensors", tmp_path / "packed.safetensors")
    return tmp_path / "packed.safetensors"


def rewrite(path, change):
    """Change the stored tensors and what the metadata says of them."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    stored, about = load_file(path), json.loads(metadata[KEY])
    change(stored, about)
    save_file(stored, path, metadata | {KEY: json.dumps(about)})


class TestPacking:
    def test_comes_back_and_so_does_the_metadata(self, packed, tensors, tmp_path):
        assert same_tensors(read_packed(packed), tensors)
        unpack_file(packed, tmp_path / "back.safetensors")
        assert same_tensors(load_file(tmp_path / "back.safetensors"), tensors)
        with safe_open(tmp_path / "back.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt", "hf_cyclical": "{}"}

    def test_packs_what_gets_smaller_under_the_same_names(self, packed, tensors):
        stored = load_file(packed)
        rows = {name for name, tensor in stored.items() if tensor.dtype == torch.uint8}
        assert stored.keys() == tensors.keys()
        assert rows == {"conv.weight", "half.weight", "zeros"}
        assert all(stored[name].ndim == 1 for name in rows)
        with safe_open(packed, "pt") as file:
            about = json.loads(file.metadata()[KEY])
        assert about["version"] == 1
        assert about["tensors"]["half.weight"] == ["bfloat16", [16, 32]]

    def test_dense_and_small_tensors_stay(self, tmp_path):
        tensors = {"dense": torch.randn(50, 50), "small": torch.zeros(4), "bytes": torch.zeros(900, dtype=torch.uint8)}
        tensors["negative zero"] = torch.tensor([-0.0, 1.0])
        save_file(tensors, tmp_path / "a")
        summary = pack_file(tmp_path / "a", tmp_path / "b")
        assert summary.tensors == 0
        back = read_packed(tmp_path / "b")
        assert back.keys() == tensors.keys()
        assert all(torch.equal(back[name], tensors[name]) for name in tensors)
        assert math.copysign(1, back["negative zero"][0]) == -1

    def test_keeps_everything_but_the_sign_of_zero(self, tmp_path):
        tensor = sparse(100, 10)
        tensor[0, :4] = torch.tensor([-0.0, float("nan"), float("-inf"), 1e-42])
        save_file({"w": tensor}, tmp_path / "a")
        pack_file(tmp_path / "a", tmp_path / "b")
        assert torch.equal(bits(read_packed(tmp_path / "b")["w"]), bits(tensor))

    @pytest.mark.parametrize("s", [0.9, 0.95, 0.98])
    def test_is_within_the_bound(self, s, tmp_path):
        shapes = {"a": (64, 3, 7, 7), "b": (64, 64, 3, 3), "c": (256, 64, 1, 1), "fc": (10, 512)}
        tensors = {name: sparse(*shape, s=s, seed=i) for i, (name, shape) in enumerate(shapes.items())}
        save_file(tensors, tmp_path / "a")
        summary = pack_file(tmp_path / "a", tmp_path / "b")
        n, kept = summary.weights, summary.nonzero
        entropy = -sum(p * math.log2(p) for p in (kept / n, 1 - kept / n))
        assert n == sum(tensor.numel() for tensor in tensors.values())
        assert summary.payload_bytes <= (n * entropy + 32 * kept) / 8
        if s == 0.9:
            assert summary.ratio > 10

    def test_is_the_same_every_time(self, packed, tmp_path):
        for _ in range(5):
            pack_file(tmp_path / "dense.safetensors", tmp_path / "again.safetensors")
            assert (tmp_path / "again.safetensors").read_bytes() == packed.read_bytes()

    def test_summary(self, packed, tmp_path):
        summary = pack_file(tmp_path / "dense.safetensors", tmp_path / "again.safetensors")
        assert summary.packed_bytes == packed.stat().st_size
        assert summary.weights == 288 + 512 + 512
        assert summary.nonzero == 29 + 51

    def test_twice_is_refused(self, packed, tmp_path):
        assert is_packed(packed)
        assert not is_packed(tmp_path / "dense.safetensors")
        with pytest.raises(PruningError, match="packed already"):
            pack_file(packed, tmp_path / "x")
        with pytest.raises(PruningError, match="is not packed"):
            unpack_file(tmp_path / "dense.safetensors", tmp_path / "x")
        assert not (tmp_path / "x").exists()


class TestDamage:
    def test_2000_flipped_bits(self, packed, tensors):
        whole = packed.read_bytes()
        detected = 0
        for bit in random.Random(0).sample(range(8 * len(whole)), 2000):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            packed.write_bytes(damaged)
            try:
                assert same_tensors(read_packed(packed), tensors), f"bit {bit} changed the weights unnoticed"
            except PruningError as error:
                assert "\n" not in str(error)  # noqa: PT017  both ends are allowed
                detected += 1
        assert detected > 1900

    def test_truncated_files(self, packed):
        whole = packed.read_bytes()
        for size in [0, 7, 8, 100, len(whole) // 2, len(whole) - 1]:
            packed.write_bytes(whole[:size])
            with pytest.raises(PruningError):
                read_packed(packed)

    def test_other_files(self, tmp_path):
        torch.save({"w": torch.zeros(3)}, tmp_path / "pickle")
        with pytest.raises(PruningError, match="no safetensors file, or damaged"):
            read_packed(tmp_path / "pickle")
        with pytest.raises(PruningError, match="there is no file"):
            read_packed(tmp_path / "nothing")

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda stored, about: about["tensors"].update({"conv.weight": ["float32", [4, 8, 3, 3]]}), "conv.weight"),
            (lambda stored, about: about["tensors"].update({"conv.weight": None}), "conv.weight"),
            (lambda stored, about: about["tensors"].pop("conv.weight"), "checksum"),
            (lambda stored, about: about["tensors"].update({"norm.weight": ["float32", [8]]}), "norm.weight"),
            (lambda stored, about: about["tensors"].update({"stranger": ["float32", [8]]}), "lacks 'stranger'"),
            (lambda stored, about: about.update(tensors=[1]), "cannot be read"),
            (lambda stored, about: about.update(checksum=None), "cannot be read"),
            (lambda stored, about: about.pop("version"), "cannot be read"),
            (lambda stored, about: about.update(version=2), "packed in layout 2, known is 1: update"),
            (lambda stored, about: about.update(checksum="0" * 64), "checksum"),
            (lambda stored, about: stored.pop("conv.weight"), "lacks 'conv.weight'"),
            (lambda stored, about: stored.update(extra=torch.ones(3)), "checksum"),
            (lambda stored, about: stored.update({"norm.weight": torch.zeros(8)}), "checksum"),
            (lambda stored, about: stored.update(zeros=encode(torch.zeros(8, 64))), "'zeros' is of"),
            (lambda stored, about: stored.update({"conv.weight": stored["zeros"].clone()}), "conv.weight"),
        ],
    )
    def test_names_what_does_not_fit(self, packed, change, why):
        rewrite(packed, change)
        with pytest.raises(PruningError, match=why) as caught:
            read_packed(packed)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", '{"version": 1}', "[" * 100_000])
    def test_metadata_that_is_none(self, packed, text):
        save_file(load_file(packed), packed, {KEY: text})
        with pytest.raises(PruningError, match="cannot be read"):
            read_packed(packed)

    @pytest.mark.parametrize("dtype", BITS)
    def test_dtypes_that_torch_lacks(self, dtype, tmp_path):
        file = tmp_path / "a"
        save_file({"w" * 1000: torch.zeros(64)}, file)
        with_dtype(file, "w" * 1000, dtype)
        for read in (read_packed, lambda path: pack_file(path, tmp_path / "b")):
            with pytest.raises(PruningError, match=r"is not packed|tensor 'www\w+ is of F.* cannot be read") as caught:
                read(file)
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 300
        assert not (tmp_path / "b").exists()

    def test_long_names_are_cut(self, packed):
        name = "\x1b" * 10_000
        rewrite(packed, lambda stored, about: about["tensors"].update({name: ["float32", [8]]}))
        with pytest.raises(PruningError, match=r"lacks '\\x1b") as caught:
            read_packed(packed)
        rewrite(packed, lambda stored, about: stored.update({name: torch.ones(3)}))
        with pytest.raises(PruningError, match=r"'\\x1b") as second:
            read_packed(packed)
        assert all(len(str(error.value)) < 400 for error in (caught, second))

    def test_bombs_are_refused_together(self, tmp_path):
        # None is too large, but there are many.
        save_file({f"w{i}": torch.zeros(1000) for i in range(10)}, tmp_path / "a")
        pack_file(tmp_path / "a", tmp_path / "b")
        assert len(read_packed(tmp_path / "b", max_bytes=40_000)) == 10
        with pytest.raises(PruningError, match="takes 40,000 bytes unpacked, more than max_bytes=39,999"):
            read_packed(tmp_path / "b", max_bytes=39_999)
