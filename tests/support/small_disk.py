"""Disks that are full: a small one if that is allowed here, else files that may not grow."""

import os
import resource
import subprocess

import pytest

SIZE = 256 * 1024


class SmallDisk:
    """A folder on a disk of 256 KiB, or with a limit on the size of files instead, which is as hard to write to."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0

    def fill(self, left=1000):
        """From now on there is room for about so many bytes."""
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (left, resource.RLIM_INFINITY))
            return
        free = os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize
        page = os.sysconf("SC_PAGE_SIZE")  # what a disk in memory counts by
        (self.folder / "filling").write_bytes(bytes((free - left) // page * page))

    def empty(self):
        """There is room again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        (self.folder / "filling").unlink(missing_ok=True)

    def close(self):
        self.empty()
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)


@pytest.fixture
def small_disk(tmp_path):
    disk = SmallDisk(tmp_path / "disk")
    yield disk
    disk.close()
