"""Rules of settings: the values that they let through, and the line for any other."""

import pytest

from hf_cyclical.core import PruningError
from hf_cyclical.core.settings import number, one_of, patterns, switch, text, whole


@pytest.mark.parametrize(
    ("setting", "good", "bad", "line"),
    [
        (
            number("[0, 1)", "use 0.5"),
            [0, 0.5, 0.999],
            [1, -0.1, float("nan"), "0.5", True],
            "must be in [0, 1): use 0.5",
        ),
        (number("(0, 1]", "use 0.5"), [1, 1e-9], [0, 1.001, float("inf")], "must be in (0, 1]: use 0.5"),
        (number("[0, inf)", "use 0"), [0, 1e9], [-1, float("inf")], "must be 0 or more: use 0"),
        (whole(1, "use 1"), [1, 10**6], [0, 1.0, True, None], "must be a whole number of at least 1: use 1"),
        (one_of(["one", "two"]), ["one"], ["on"], "is not one of one, two: did you mean one?"),
        (one_of(["one", "two"]), ["two"], ["xyz", 3], "is not one of one, two: choose one of them"),
        (switch(), [True, False], ["true", 1], "must be true or false: write one of them"),
        (text("write it"), [""], [4], "must be text: write it"),
        (patterns(), [[], ["a.*"]], [[1]], "must be a list of patterns: write [[1]]"),
    ],
)
def test_a_value_that_the_rule_does_not_hold_for_is_refused(setting, good, bad, line):
    for value in good:
        setting.check("name", value)
    for value in bad:
        with pytest.raises(PruningError) as error:
            setting.check("name", value)
        assert str(error.value) == f"name {value!r} {line}"
