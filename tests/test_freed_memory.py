import platform
import subprocess
import sys

import pytest

CODE = """
import resource, sys
import torch
from hf_cyclical.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        tensors = [torch.ones(6 * 2**20) for _ in range(4)]  # of 24 MiB each, or 6144 pages
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    keep_freed_memory()
faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left as they are")
def test_freed_memory_is_kept_for_the_next_update():
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", CODE, how], capture_output=True, text=True, check=True).stdout)
        for how in ("keep", "return")
    )
    assert kept < 100
    assert returned > 10_000  # else the test says nothing
