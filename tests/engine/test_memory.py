"""Nothing is read or written outside the engine's own buffers: they lie between pages that must not be touched."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, mmap, sys
import numpy as np
import torch, timm
import hf_cyclical
from engine.checks import images, sparsify
from hf_cyclical.engine.graph import build_graph
from hf_cyclical.engine.native import host

PAGE = mmap.PAGESIZE
mprotect = ctypes.CDLL(None, use_errno=True).mprotect
mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
regions = []

def fenced(at_end):
    def allocate(floats):
        size = -(-floats // 16) * 64  # buffers begin at cache lines
        pages = -(-size // PAGE)
        region = mmap.mmap(-1, (pages + 2) * PAGE)
        regions.append(region)
        memory = np.frombuffer(region, np.uint8)
        for page in (0, pages + 1):
            assert mprotect(memory.ctypes.data + page * PAGE, PAGE, 0) == 0
        start = PAGE * (pages + 1) - size if at_end else PAGE
        return memory[start : start + 4 * floats].view(np.float32)
    return allocate

name, side = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
model = sparsify(timm.create_model(name, num_classes=7), 0.9)
pixels = images(1, 3, side, side)
with torch.no_grad():
    expected = model(pixels)
for width in (None, 4):
    for threads in (1, 2):
        graph = build_graph(model, tuple(pixels.shape[1:]), host(width), threads)
        graph.always_share = True
        for at_end in (True, False):
            graph.place(fenced(at_end))
            memory = fenced(at_end)(pixels.numel())
            memory[:] = pixels.reshape(-1).numpy()
            result = graph.run(torch.from_numpy(memory).reshape(pixels.shape))
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
if sys.argv[3:]:  # the fence itself: one float too far
    ctypes.c_float.from_address(fenced(True)(16).ctypes.data + 64).value
print("inside")
sys.stdout.flush()
import os
os._exit(0)  # numpy would free memory that is mapped
"""


def run(*args):
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = os.environ | {"PYTHONPATH": path}
    command = [sys.executable, "-c", PROGRAM, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    ("name", "side"), [("cifar_resnet8", 17), ("test_efficientnet", 37), ("test_vit", 160), ("resnet18", 60)]
)
def test_nothing_outside_the_buffers_is_touched(name, side):
    done = run(name, str(side))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().endswith("inside")


def test_the_fence_would_notice():
    done = run("cifar_resnet8", "8", "too far")
    assert done.returncode == -signal.SIGSEGV, done.stderr[-2000:]
