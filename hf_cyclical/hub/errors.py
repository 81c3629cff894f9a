"""What the Hub and the way to it come up with while something is pushed, as one line with a remedy."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import errors, get_token

from hf_cyclical.core import PruningError, printable
from hf_cyclical.models import broke_on_the_way, is_of_the_hub

LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
_MOST_WORDS = 300  # of what the Hub says, in characters


@contextmanager
def pushing(repo_id: str, then: str = "", timeout: float | None = None) -> Iterator[None]:
    """Turns what the client raises while a repository is written to into one line, which `then` ends.

    Args:
        repo_id: The repository.
        then: What to do then.
        timeout: Seconds that the client waits for an answer.
    """
    try:
        yield
    except PruningError as error:
        raise PruningError(f"{error}{then}") from error
    except Exception as error:
        if not is_of_the_hub(error):
            raise
        text = f"{_reason(error, repo_id, timeout)}{then}"
        raise PruningError(text.replace(get_token() or "\0", "...")) from error


def _reason(error: Exception, repo_id: str, timeout: float | None) -> str:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    said = getattr(error, "server_message", None) or str(error) or type(error).__name__
    said = re.sub(r"Bearer [^'\"]*", "Bearer ...", said)
    said = printable(
        " ".join(re.sub(r"\?\S+", "", said).split())[:_MOST_WORDS]
    )  # an address may be signed behind its "?"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{repo_id!r} was not pushed, as HF_HUB_OFFLINE is set: unset it"
    if status == 401:
        return f"the Hub refuses the token for {repo_id!r} (401): {LOGIN}"
    if status in (409, 412):  # the branch is there already, or is not what it was
        return f"somebody else pushed to {repo_id!r} at the same time"
    if status == 403:
        return f"the Hub does not let the token write to {repo_id!r} (403: {said}): take another token or name"
    if isinstance(error, ValueError) and ("README.md" in said or "YAML" in said):
        return f"the Hub rejects the card of {repo_id!r} ({said})"
    if status:
        return f"the Hub failed to take {repo_id!r} ({status}: {said})"
    if timeout is not None and _is_timeout(error):
        return f"the Hub did not answer within {timeout:g} seconds while {repo_id!r} was pushed"
    what = "the connection to the Hub broke" if broke_on_the_way(error) else "the Hub's client gave up"
    return f"{what} while {repo_id!r} was pushed ({type(error).__name__}: {said})"


def _is_timeout(error: BaseException | None) -> bool:
    """Whether nothing came for too long; the HTTP library, which is not always the same, names these errors so."""
    return error is not None and (type(error).__name__.endswith("Timeout") or _is_timeout(error.__cause__))
