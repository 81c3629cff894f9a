"""`--budget`: the arithmetic, with hand-worked numbers."""

import pytest

from hf_cyclical import PruningError
from hf_cyclical.training.budget import SHORTEST, Cost, Work, duration, fit_epochs, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1h0m5s", 3605), ("1.5H", 5400), (" 10m ", 600)],
)
def test_times(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "m", "30min", "-5m", "0s", "5m1h", "1e3s", "nan", "9999999h"])
def test_what_is_no_time_is_refused_in_a_line(text):
    with pytest.raises(PruningError, match=r"^budget .* is no time: write 90s, 30m, 2h or 1h30m$"):
        seconds_of(text)


@pytest.mark.parametrize("seconds", [0.2, 59, 119.5, 121, 3599, 3600, 5000, 86400])
def test_what_is_told_is_read_and_is_enough(seconds):
    assert seconds <= seconds_of(duration(seconds)) < seconds + 60


def a_run_of(per_epoch, cycles=1):
    """Updates, and an evaluation before it and after each cycle."""
    return lambda epochs: Work(round(epochs * per_epoch), evaluations=1 + cycles)


@pytest.mark.parametrize(
    ("budget", "cost", "per_epoch", "epochs"),
    [
        # 0.9 * 3600 s = 3,240 s; less 2 evaluations of 20 s, 3,200 s are 6,400 updates: 64 epochs of 100.
        ("1h", Cost(0.5, 0, 20), 100, 64),
        ("1h", Cost(0.5, 0, 20.1), 100, 63),  # 3,199.8 s
        ("10m", Cost(0.5), 100, 10),  # 540 s are 1,080 updates: 10.8 epochs, of which whole ones
        ("10m", Cost(0.5), 200, 5.4),  # 1,080 updates
        ("10m", Cost(0.5), 2000, 0.54),
        ("1000h", Cost(0.001), 100, 32_400_000),
    ],
)
def test_the_most_epochs_that_there_is_time_for(budget, cost, per_epoch, epochs):
    assert fit_epochs(budget, cost, a_run_of(per_epoch), least=SHORTEST / per_epoch) == pytest.approx(epochs)


def test_choices_of_masks_take_time_too():
    # 540 s: 10 updates and a choice among them take 6 s, so that there are 90 of them.
    assert fit_epochs("10m", Cost(0.5, choice=1), lambda e: Work(round(10 * e), choices=round(e)), least=1) == 90


def test_a_time_too_short_for_a_cycle_is_refused_with_what_is_needed():
    # 100 updates of 0.5 s and 2 evaluations of 20 s are 90 s, and a tenth more is kept: 100 s.
    cost, work = Cost(0.5, 0, 20), a_run_of(100)
    with pytest.raises(PruningError, match=r"^budget '99s' is too short for one cycle .* \(1 epochs\): give 100s or"):
        fit_epochs("99s", cost, work, least=1)
    assert fit_epochs("100s", cost, work, least=1) == 1


def test_what_fits_fits_and_one_step_more_does_not():
    cost, work = Cost(0.137, 0.01, 3.3), lambda e: Work(round(157 * e), round(5 * e), 3 + round(e))
    for minutes in range(2, 90, 7):
        epochs = fit_epochs(f"{minutes}m", cost, work, least=0.2)
        step = 0.001 if epochs < 1 else 0.1 if epochs < 10 else 1
        assert work(epochs).seconds(cost) <= 54 * minutes < work(epochs + step).seconds(cost)
