"""The code of one tensor: what it keeps, how small it is, and what it refuses."""

import tracemalloc
import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sparse_weights import bits, sparse

from hf_cyclical import PruningError
from hf_cyclical.formats import decode, encode

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def payload(*, kind, numbers, streams=b"", checksum=None, content=b""):
    """A payload made by hand; all numbers must be below 128, which take one byte."""
    if checksum is None:
        checksum = zlib.crc32(content, zlib.crc32(bytes(kind)))
    data = b"HFC1" + checksum.to_bytes(4, "little") + bytes(kind) + bytes(numbers) + streams
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


class TestFormat:
    def test_example_worked_by_hand(self):
        # bfloat16: 1.0 = 0x3f80, -1.25 = 0xbfa0. The least |w| is 0x3f80, the distances from it are 0 and 0x20.
        tensor = torch.tensor([[0, 0, 1.0], [0, -1.25, 0]], dtype=torch.bfloat16)
        kind = [2, 2, 2, 3]  # bfloat16, two dimensions, 2 x 3
        content = bytes.fromhex("00000000803f0000a0bf0000")
        # 2 values, 0x3f80 as LEB128, no low bits, 2 gaps, of which 2 bytes are stored, as of the bins
        numbers = [2, 0x80, 0x7F, 0, 2, 2, 2]
        streams = bytes([2, 1]) + bytes([0, 0x20]) + bytes([0b01_000000])  # gaps, bins, signs
        assert torch.equal(encode(tensor), payload(kind=kind, numbers=numbers, streams=streams, content=content))
        # The same with three low bits: the bins are 0 and 0b100, the rest is 0 000 and 1 000.
        numbers = [2, 0x80, 0x7F, 3, 2, 2, 2]
        streams = bytes([2, 1]) + bytes([0, 0b100]) + bytes([0b0000_1000])
        by_hand = payload(kind=kind, numbers=numbers, streams=streams, content=content)
        assert torch.equal(decode(by_hand, "w"), tensor)

    def test_gap_of_255_zeros_or_more(self):
        for n in (254, 255, 256, 510, 511, 100_000):
            tensor = torch.zeros(n + 1)
            tensor[n] = 1.0
            assert torch.equal(decode(encode(tensor), "w"), tensor)

    def test_says_the_same_every_time(self):
        assert torch.equal(encode(sparse(50, 50)), encode(sparse(50, 50)))


class TestRoundTrip:
    @settings(max_examples=150)
    @given(st.data())
    def test_every_bit_pattern(self, data):
        dtype = data.draw(st.sampled_from(DTYPES))
        width = 8 * dtype.itemsize
        shape = data.draw(st.lists(st.integers(0, 6), max_size=4))
        n = torch.Size(shape).numel()
        pattern = st.one_of(st.just(0), st.integers(-(1 << width - 1), (1 << width - 1) - 1))
        values = data.draw(st.lists(pattern, min_size=n, max_size=n))
        integers = {16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
        tensor = torch.tensor(values, dtype=integers).view(dtype).view(shape)
        back = decode(encode(tensor), "w")
        assert back.shape == tensor.shape
        assert back.dtype == dtype
        assert torch.equal(bits(back), bits(tensor))

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_large_tensor_with_odd_values(self, dtype):
        tensor = sparse(300_000, dtype=dtype)
        tensor[::70_001] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40], dtype=dtype)
        assert torch.equal(bits(decode(encode(tensor), "w")), bits(tensor))

    @pytest.mark.parametrize("tensor", [torch.tensor(0.0), torch.tensor(-2.5), torch.zeros(0, 3), torch.randn(999)])
    def test_odd_shapes_and_dense_ones(self, tensor):
        back = decode(encode(tensor), "w")
        assert back.shape == tensor.shape
        assert torch.equal(back, tensor)

    def test_strided_tensor_with_gradient(self):
        tensor = sparse(40, 30).T.requires_grad_()
        assert torch.equal(decode(encode(tensor), "w"), tensor.detach())

    def test_other_dtypes_are_refused(self):
        with pytest.raises(PruningError, match=r"torch.int64 .* cannot be packed: use float32"):
            encode(torch.zeros(3, dtype=torch.int64))


HALF = {"kind": [2, 1, 8], "content": bytes(16)}  # eight bfloat16 zeros


class TestHostile:
    def check(self, bad, why, **limits):
        with pytest.raises(PruningError, match=why) as caught:
            decode(bad, "layer.weight", **limits)
        assert "'layer.weight'" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_the_base_of_these_tests_is_whole(self):
        assert torch.equal(decode(payload(**HALF, numbers=[0] * 6), "w"), torch.zeros(8, dtype=torch.bfloat16))

    @pytest.mark.parametrize(
        ("numbers", "streams", "why"),
        [
            ([9, 1, 0, 9, 9, 9], bytes(18), "9 nonzero values of 8"),
            ([1, 1, 15, 1, 1, 1], bytes(4), "15 low bits"),
            ([1, 0x80, 0x80, 2, 0, 1, 1, 1], bytes(3), "low bits above 32768"),
            ([2, 1, 0, 1, 1, 2], bytes(4), "1 gaps for 2 values"),
            ([1, 1, 0, 9, 1, 1], bytes(3), "9 gaps for 1 values"),
            ([1, 1, 0, 1, 2, 1], bytes(4), "longer than what it holds"),
            ([1, 1, 0, 1, 1, 1], bytes(4), "21 bytes instead of 20"),
            ([1, 1, 0, 1, 1, 1], bytes([8, 0, 0]), "past its 8 values"),
            ([1, 1, 0, 1, 1, 1], bytes([255, 0, 0]), "past its 8 values"),
            ([1, 1, 14, 1, 1, 1], bytes([0, 255, 0, 0]), "more bits than its dtype"),
            ([1, 0xFF, 0xFF, 1, 0, 1, 1, 1], bytes([0, 1, 0]), "more bits than its dtype"),
            ([2, 1, 0, 2, 1, 2], b"\x03" + bytes(3), "a stream does not hold 2 bytes"),
            ([2, 1, 0, 2, 1, 2], b"\x07" + bytes(3), "a stream is broken"),
            ([1, 1, 0, 1, 1, 1], bytes(3), "checksum differs"),
            ([0x80] * 20, b"", "header is cut off"),
            ([0], b"", "header is cut off"),
        ],
    )
    def test_numbers_and_streams_that_do_not_fit(self, numbers, streams, why):
        self.check(payload(**HALF, numbers=numbers, streams=streams), why)

    @pytest.mark.parametrize("kind", [[4, 1, 8], [0, 17, *[1] * 17]])
    def test_unknown_kind(self, kind):
        self.check(payload(kind=kind, numbers=[0] * 6), "dtype .* dimensions")

    @pytest.mark.parametrize(
        "bad",
        [torch.zeros(0, dtype=torch.uint8), torch.zeros(99, dtype=torch.uint8), torch.zeros(2, 9, dtype=torch.uint8)],
    )
    def test_no_payload_at_all(self, bad):
        self.check(bad, "does not start with HFC1|not a row of bytes")
        self.check(torch.zeros(9), "not a row of bytes")

    def test_every_truncation(self):
        whole = encode(sparse(20, 20))
        for size in range(whole.numel()):
            self.check(whole[:size], "damaged")
        self.check(torch.cat([whole, whole[:1]]), "damaged")

    @pytest.mark.parametrize("shape", [[0xFF] * 8 + [0x7F], [*[0x80] * 8, 0x40]])
    def test_bomb_of_zeros_is_refused_before_memory_is_taken(self, shape):
        bomb = payload(kind=[0, 1, *shape], numbers=[0] * 6)
        self.check(bomb, "more than max_bytes=4,294,967,296")
        self.check(payload(kind=[0, 2, 0, *shape], numbers=[0] * 6), "more than max_bytes")

    def test_limit_is_that_of_the_decoded_bytes(self):
        tensor = encode(torch.zeros(1000))
        assert decode(tensor, "w", max_bytes=4000).numel() == 1000
        self.check(tensor, "takes 4,000 bytes unpacked, more than max_bytes=3,999", max_bytes=3999)

    def test_bomb_in_a_stream_takes_no_memory(self):
        coder = zlib.compressobj(9, zlib.DEFLATED, -15)
        stream = coder.compress(bytes(100_000_000)) + coder.flush()
        stored = len(stream)
        varint = bytes([stored & 127 | 128, stored >> 7 & 127 | 128, stored >> 14])
        # A million float16 values, all nonzero, whose gaps are said to be that stream.
        million = bytes([0xC0, 0x84, 0x3D])
        numbers = million + bytes([1, 0]) + million + varint + million
        bomb = payload(kind=[1, 1, *million], numbers=numbers, streams=stream + bytes(1_000_000 + 125_000))
        tracemalloc.start()
        self.check(bomb, "a stream does not hold 1000000 bytes")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 5_000_000

    def test_decoding_takes_little_more_than_its_result(self):
        tensor = torch.randn(1_000_000).half()
        dense = encode(tensor)
        tracemalloc.start()
        decode(dense, "w")
        peak = tracemalloc.get_traced_memory()[1]  # of numpy and zlib; the result is torch's
        tracemalloc.stop()
        assert peak < tensor.nbytes + 15_000_000
