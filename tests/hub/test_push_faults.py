"""A push that fails loses nothing: one line that says what happened, and the command that tries again."""

import pytest
from support.local_hub import READER, WRITER
from support.pushing import contents


@pytest.fixture
def refused(clients, run):
    """Push, and give the line that says why it failed."""

    def push(repo_id, *arguments, command=True, **options):
        before = contents(run)
        code, out, err = clients.push(run, repo_id, *arguments, impatient=True, **options)
        assert (code, out) == (2, "")
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, err
        assert "Traceback" not in err
        assert not any(token in err for token in (WRITER, READER))
        assert "signature=" not in lines[0]  # of an address that the Hub gave for an upload
        assert contents(run) == before
        again = " ".join(["hf-cyclical push", str(run), repo_id, *arguments])
        assert lines[0].endswith(f"to try again: {again}") == command
        return lines[0]

    return push


def pushed(hub, clients, run, *arguments):
    """Try again, and see that it works now."""
    code, _, err = clients.push(run, "user/model", *arguments)
    assert code == 0, err
    assert len(hub.files("user/model")) == 6
    return True


def test_an_error_of_the_server(hub, clients, run, refused):
    hub.fail("POST", "/commit/", message="Database on fire")
    assert "the Hub failed to take 'user/model' (500: Database on fire)" in refused("user/model", "--packed")
    assert hub.files("user/model") == {}
    assert pushed(hub, clients, run, "--packed")
    assert len([r for r in hub.asked("PUT", "/lfs/") if r.body[:1] != b"\x89"]) == 2  # weights go up once a branch


def test_what_the_server_says_cannot_clear_the_screen(hub, refused):
    hub.fail("POST", "/commit/", message="Database \x1b[2J on fire", times=None)
    assert "(500: Database ?[2J on fire)" in refused("user/model")


def test_an_error_between_the_branches(hub, clients, run, refused):
    hub.fail("POST", "/commit/packed")
    assert "(500: " in refused("user/model", "--packed", "--license", "mit")
    assert (len(hub.files("user/model")), len(hub.asked("POST", "/commit/main"))) == (6, 1)
    assert pushed(hub, clients, run, "--packed", "--license", "mit")
    assert len(hub.files("user/model", "packed")["model.safetensors"]) < 400_000
    assert len(hub.asked("POST", "/commit/main")) == 1


def test_a_connection_that_is_cut_in_every_upload(hub, clients, run, refused):
    fault = hub.drop("PUT", "/lfs/", after_bytes=1000, times=None)
    assert "the connection to the Hub broke while 'user/model' was pushed" in refused("user/model")
    assert fault.hits > 1  # huggingface_hub tried again
    assert hub.files("user/model") == {}
    hub.faults.clear()
    assert pushed(hub, clients, run)


def test_a_connection_that_is_cut_once_does_not_matter(hub, clients, run):
    fault = hub.drop("PUT", "/lfs/", after_bytes=1000)
    code, _, err = clients.push(run, "user/model", impatient=True)
    assert (code, fault.hits) == (0, 1), err


def test_an_answer_that_is_lost(hub, clients, run, refused):
    hub.lose_answer("POST", "/commit/")
    assert "the connection to the Hub broke" in refused("user/model")
    assert pushed(hub, clients, run)
    assert len(hub.asked("POST", "/commit/")) == 1  # it was there already


def test_a_token_that_is_refused_half_way(hub, clients, run, refused):
    hub.fail("POST", "/commit/", status=401, message="Invalid credentials in Authorization header")
    assert "the Hub refuses the token for 'user/model' (401): log in with `hf auth login`" in refused("user/model")
    assert pushed(hub, clients, run)


def test_a_token_that_the_hub_does_not_know(hub, refused):
    line = refused("user/model", token="hf_unknown")  # noqa: S106
    assert "the Hub refuses the token" in line
    assert "hf_unknown" not in line


def test_no_token(hub, refused):
    assert "there is no token to push to 'user/model' with: log in" in refused("user/model", token=None)
    assert not hub.requests


@pytest.mark.parametrize("there", [False, True])
def test_a_readers_token(hub, refused, there):
    if there:
        hub.put("user/model", {"a.txt": b"1"}, private=True)
    line = refused("user/model", token=READER)
    assert "does not let the token write to 'user/model' (403: " in line
    assert "You need a token with the role write" in line
    assert not hub.asked("PUT", "/lfs/")


def test_no_such_organisation(hub, refused):
    line = refused("nobody/model", "--hub_public")
    assert """(403: """ in line
    assert 'You don\'t have the rights to create a model under the namespace "nobody"' in line


def test_a_card_that_is_rejected(hub, refused):
    line = refused("user/model", "--license", "mine")
    assert "the Hub rejects the card of 'user/model'" in line
    assert '"license" must be one of' in line
    assert len(line) < 900
    assert hub.files("user/model") == {}


def test_no_hub_at_all(hub, clients, run, refused):
    hub.fail("POST", "/api/repos/create", status=503, times=None, message="Maintenance")
    assert "(503: Maintenance)" in refused("user/model")
    hub.faults.clear()
    hub.drop("POST", "/api/repos/create", times=None)
    assert "the connection to the Hub broke" in refused("user/model")


def test_the_script_explains_itself_and_refuses_what_it_does_not_know(clients, run):
    code, out, _ = clients.command("push", "--help")
    assert code == 0
    assert all(word in out for word in ("--hub_public", "--packed", "--license", "HF_TOKEN", "user/name"))
    for arguments, word in [
        ([run], "user/name"),
        ([run, "user/model", "--publik"], "--publik"),
        ([run, "user/model", "--token", "hf_secret"], "hf auth login"),
        ([run, "user/model", "--hub-token=hf_secret"], "hf auth login"),
    ]:
        code, _, err = clients.command("push", *arguments)
        assert (code, err.count("\n"), word in err, "hf_secret" in err) == (2, 1, True, False), err
