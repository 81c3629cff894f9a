"""Errors of the Hub and of the way to it become one line; mistakes in a program stay what they are."""

import pytest
from huggingface_hub import errors

from hf_cyclical import PruningError
from hf_cyclical.hub.errors import pushing
from hf_cyclical.models import downloading

MISTAKES = [TypeError("none"), KeyError("url"), AttributeError("x"), AssertionError(), IndexError(), NameError("y")]


@pytest.mark.parametrize("error", MISTAKES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("block", [pushing, downloading])
def test_mistakes_are_not_hidden(block, error):
    with pytest.raises(type(error)) as raised, block("user/model"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        (ConnectionResetError("reset"), None, "the connection to the Hub broke while 'user/model' was pushed"),
        (errors.HTTPError("timed out"), None, "the connection to the Hub broke"),
        (RuntimeError("Error while uploading"), ConnectionError("cut"), "the connection to the Hub broke"),
        (TypeError("in a thread"), ConnectionError("cut"), "the connection to the Hub broke"),
        (ValueError("Malformed response from server"), None, "the Hub's client gave up while 'user/model' was pushed"),
        (RuntimeError("of the transfer by Xet"), None, "the Hub's client gave up"),
        (errors.OfflineModeIsEnabled("offline"), None, "as HF_HUB_OFFLINE is set: unset it"),
    ],
)
def test_what_is_said_of_others(error, cause, words):
    error.__cause__ = cause
    with pytest.raises(PruningError) as raised, pushing("user/model", "; and then"):
        raise error
    assert words in str(raised.value)
    assert str(raised.value).endswith("; and then")
    with pytest.raises(PruningError, match=r"^model 'user/model' could not be downloaded"), downloading("user/model"):
        raise error


def test_no_token_is_told(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    with pytest.raises(PruningError) as raised, pushing("user/model"):
        raise errors.HTTPError("Illegal header value b'Bearer hf_other', hf_mine, https://x.y/z?signature=abc")
    assert not any(secret in str(raised.value) for secret in ("hf_mine", "hf_other", "signature"))
