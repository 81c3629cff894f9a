"""What the C library does with memory that torch frees on a CPU."""

import ctypes
import os

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_LARGEST_THRESHOLD = 32 * 2**20  # that every glibc takes
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Let the process keep the memory that it frees, where the C library is glibc.

    Otherwise the activations of every update go back to the system, and with the next update it must find and clear
    their pages again: a tenth of the time of a small network.
    """
    if os.name != "posix":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
    mallopt(_TRIM_THRESHOLD, _NEVER)
