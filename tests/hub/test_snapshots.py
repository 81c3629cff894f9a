"""Snapshots in the cache of the Hub's client: their files are links, to the blobs of the same repository alone."""

import hashlib
import shutil

import pytest
from support.stamped import save_stamped

from hf_cyclical import PruningError
from hf_cyclical.formats import pack_folder, unpack_folder
from hf_cyclical.hub import verify
from hf_cyclical.models import load

WEIGHTS, RECORD = "model.safetensors", "sparsity.json"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_stamped("cifar_resnet8", folder / "dense")
    pack_folder(folder / "dense", folder / "packed")
    return folder


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def snapshot(models, tmp_path):
    repository = tmp_path / "models--user--name"
    folder = repository / "snapshots" / ("0" * 40)
    (repository / "blobs").mkdir(parents=True)
    folder.mkdir(parents=True)
    for file in (models / "packed").iterdir():
        blob = hashlib.sha256(file.read_bytes()).hexdigest()
        shutil.copyfile(file, repository / "blobs" / blob)
        (folder / file.name).symlink_to(f"../../blobs/{blob}")
    return folder


class TestSnapshots:
    def test_are_what_they_link_to(self, snapshot, models, tmp_path):
        assert verify(snapshot).ok
        assert type(load(snapshot)).__name__ == "CifarResNet"
        (tmp_path / "link").symlink_to(snapshot)
        assert verify(tmp_path / "link").ok
        unpack_folder(snapshot, tmp_path / "back")
        assert contents(tmp_path / "back") == contents(models / "dense")

    @pytest.mark.parametrize("name", [WEIGHTS, RECORD, "config.json"])
    @pytest.mark.parametrize("to", ["../../../secret", "../../refs", "../../blobs/link", "../../../other/blobs/x"])
    def test_links_to_elsewhere(self, snapshot, name, to, tmp_path):
        whole = (snapshot / name).read_bytes()
        (tmp_path / "other" / "blobs").mkdir(parents=True)
        for file in (tmp_path / "secret", tmp_path / "other/blobs/x", snapshot.parent.parent / "refs"):
            file.write_bytes(whole)
        (snapshot.parent.parent / "blobs" / "link").symlink_to(tmp_path / "secret")
        (snapshot / name).unlink()
        (snapshot / name).symlink_to(to)
        with pytest.raises(PruningError, match=f"{name} of .* is a link to elsewhere"):
            verify(snapshot)
        with pytest.raises(PruningError, match=f"{name}' is a link to elsewhere"):
            unpack_folder(snapshot, tmp_path / "back")

    def test_blobs_that_are_a_link(self, snapshot, tmp_path):
        blobs = snapshot.parent.parent / "blobs"
        blobs.rename(tmp_path / "secrets")
        blobs.symlink_to(tmp_path / "secrets")
        with pytest.raises(PruningError, match="is a link to elsewhere"):
            verify(snapshot)

    def test_a_folder_that_is_no_cache(self, snapshot, tmp_path):
        repository = snapshot.parent.parent
        for name in ("model", "datasets--user--name"):
            repository = repository.rename(tmp_path / name)
            with pytest.raises(PruningError, match="is a link to elsewhere"):
                verify(repository / "snapshots" / snapshot.name)
