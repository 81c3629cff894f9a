"""Settings that follow from the length of a run: how many cycles it has, and how often masks are chosen."""

AUTO = "auto"

CYCLE = 2000  # updates that a cycle takes to recover: half of the paper's 20 epochs of CIFAR at 196 each
CHOICES = 31  # of masks while the sparsity rises: the paper's 16 epochs of 196 updates, every 100
DELTA_T = 100  # the paper's: masks are chosen no less often


def auto_cycles(T: int, most: int, least: int = 1) -> int:
    """The number of cycles of a run of `T` updates: as many as have enough of them, `least` to `most`.

    >>> [auto_cycles(T, most=5) for T in (500, 3999, 4000, 19_600)]
    [1, 1, 2, 5]
    """
    return min(max(T // CYCLE, least), most)


def auto_delta_t(T: int, k: int, ramp: float, tail: float = 0.0) -> int:
    """The updates between two choices of masks, for `k` cycles of a run of `T` updates.

    >>> auto_delta_t(19_600, k=5, ramp=0.8), auto_delta_t(1960, k=5, ramp=0.8)  # 3,136 and 313.6 updates rise
    (100, 10)
    """
    cycle = (T - tail * T) / (k - 1 + ramp) if tail else T / k  # of the first, as in split_with_tail
    return min(max(round(ramp * cycle / CHOICES), 1), DELTA_T)
