"""How the scripts fail: one line that hides tokens and nothing else."""

import pytest

from hf_cyclical.cli import fail


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"model 'hf_{'aB3' * 11}x' is unknown", "model '...' is unknown"),
        (f"hf_oauth_{'aB3' * 11} hf_jwt_{'aB3' * 11} api_org_{'aB3' * 11}", "... ... ..."),
        ("try push.py hf_cyclical_resnet18_imagenet_90 user/hf_cyclical_resnet18_imagenet_90", None),
        ("PruningError: two\n lines", "two lines"),
    ],
)
def test_one_line_without_tokens(said, shown, capsys):
    with pytest.raises(SystemExit) as exit_:
        fail(said)
    assert (exit_.value.code, capsys.readouterr().err) == (2, f"error: {shown or said}\n")


def test_an_error_cannot_clear_the_screen(capsys):
    with pytest.raises(SystemExit):
        fail("no file 'a\x1b[2J\nb\x07'")
    assert capsys.readouterr().err == "error: no file 'a?[2J b?'\n"
