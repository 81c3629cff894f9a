"""A process that may not take much more memory than it has."""

from pathlib import Path

import pytest

LIMIT = 1 << 29  # of memory beyond what the process has already
SIZES = Path("/proc/self/statm")


@pytest.fixture
def little_memory():
    """Has an allocation of more than `LIMIT` fail at once, whether or not the memory would be used."""
    resource = pytest.importorskip("resource")
    if not SIZES.exists():
        pytest.skip("needs Linux")
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(SIZES.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
