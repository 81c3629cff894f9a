"""What the Hub and the way to it come up with, as one line that ends with what to do."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import errors, get_token

from .core import PruningError

LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
TOKEN = re.compile(r"(?:hf_(?:oauth_|jwt_)?|api_org_)[A-Za-z0-9]{30,}")
_MOST_WORDS = 300  # of what the Hub says, in characters
_OF_THE_WAY = (OSError, errors.HTTPError)  # the second is the base class of the HTTP library's own
_MISTAKES = (AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError)


@contextmanager
def downloading(name: str, revision: str | None = None) -> Iterator[None]:
    """Turns what the client raises while a model is looked for into one line."""
    try:
        yield
    except PruningError:
        raise
    except errors.GatedRepoError as error:
        todo = f"ask for access at https://huggingface.co/{name} and log in with `hf auth login`"
        raise PruningError(f"model {name!r} is gated: {todo}") from error
    except errors.RevisionNotFoundError as error:
        todo = "name a branch, tag or commit of it"
        raise PruningError(f"model {name!r} has no revision {revision!r}: {todo}") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        todo = "check the spelling, or log in with `hf auth login` if it is private"
        raise PruningError(f"model {name!r} is neither a folder here nor on the Hub: {todo}") from error
    except errors.LocalEntryNotFoundError as error:
        todo = "go online once to download it, or give a folder"
        raise PruningError(f"model {name!r} is not in the cache and the Hub cannot be reached: {todo}") from error
    except Exception as error:
        if not _is_of_the_hub(error):
            raise
        raise PruningError(f"model {name!r} could not be downloaded, try again: {first_line(error)}") from error


@contextmanager
def pushing(repo_id: str, then: str = "") -> Iterator[None]:
    """The same while a repository is written to; `then` ends the line."""
    try:
        yield
    except PruningError as error:
        raise PruningError(f"{error}{then}") from error
    except Exception as error:
        if not _is_of_the_hub(error):
            raise
        text = f"{_reason(error, repo_id)}{then}"
        raise PruningError(text.replace(get_token() or "\0", "...")) from error


def first_line(error: Exception) -> str:
    """The first line of an error's text, or its type if it has none; without a token that the HTTP library quotes."""
    text = next(iter(str(error).strip().splitlines()), type(error).__name__)
    text = re.sub(r"Bearer [^'\"]*", "Bearer ...", text)[:_MOST_WORDS]
    return "".join(letter if letter.isprintable() else "?" for letter in text)  # some quote what is in hostile files


def _is_of_the_hub(error: Exception) -> bool:
    """Whether an error is not a mistake in a program, which has to be seen as what it is."""
    return not isinstance(error, _MISTAKES) or _broke_on_the_way(error)


def _broke_on_the_way(error: BaseException | None) -> bool:
    """Whether the connection is to blame; the client wraps some of its errors in others."""
    return error is not None and (isinstance(error, _OF_THE_WAY) or _broke_on_the_way(error.__cause__))


def _reason(error: Exception, repo_id: str) -> str:
    status = getattr(getattr(error, "response", None), "status_code", 0)
    said = getattr(error, "server_message", None) or str(error) or type(error).__name__
    said = re.sub(r"Bearer [^'\"]*", "Bearer ...", said)
    said = " ".join(re.sub(r"\?\S+", "", said).split())[:_MOST_WORDS]  # an address may be signed behind its "?"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{repo_id!r} was not pushed, as HF_HUB_OFFLINE is set: unset it"
    if status == 401:
        return f"the Hub refuses the token for {repo_id!r} (401): {LOGIN}"
    if status == 403:
        return f"the Hub does not let the token write to {repo_id!r} (403: {said}): take another token or name"
    if isinstance(error, ValueError) and ("README.md" in said or "YAML" in said):
        return f"the Hub rejects the card of {repo_id!r} ({said})"
    if status:
        return f"the Hub failed to take {repo_id!r} ({status}: {said})"
    what = "the connection to the Hub broke" if _broke_on_the_way(error) else "the Hub's client gave up"
    return f"{what} while {repo_id!r} was pushed ({type(error).__name__}: {said})"
