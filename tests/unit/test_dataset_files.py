"""Datasets by name, and their files: looked for, fetched, verified; and the real ones, where they are present."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import os
import re
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from equipoise.data import find
from equipoise.data.catalogue import CATALOGUE, Download, File, Variant
from equipoise.data.datasets import catalogue, get, load, verify, where
from equipoise.data.loaders import LOADERS
from equipoise.errors import EquipoiseError

REAL = os.environ.get("EQUIPOISE_DATA")
GENUINE = dict(CATALOGUE)
POSITIVE, NEGATIVE = b"a good film\n", b"a bad film\n"
FILES = {"rt-polarity.pos": POSITIVE, "rt-polarity.neg": NEGATIVE}


def sha(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def put(folder: Path, **more: bytes) -> Path:
    """The two files of mr, with these bytes in place of theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in FILES.items():
        (folder / name).write_bytes(more.get(name[-3:], body))
    return folder


@pytest.fixture(autouse=True)
def bare_machine(tmp_path, monkeypatch):
    """A machine without any dataset, whose cache folder is the test's own, in a world where mr is two lines."""
    monkeypatch.delenv("EQUIPOISE_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(find, "SYSTEM", (tmp_path / "system",))
    variant = Variant("text", tuple(File(name, sha(body)) for name, body in FILES.items()), ("", "rt-polaritydata"))
    monkeypatch.setitem(CATALOGUE, "mr", replace(CATALOGUE["mr"], variants=(variant,), downloads=()))


@pytest.fixture
def server(tmp_path) -> Iterator[tuple[str, Path]]:
    """An address on this machine, and the folder that it serves."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    root = tmp_path / "served"
    root.mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{serving.server_port}/", root
        serving.shutdown()


def offer(monkeypatch: pytest.MonkeyPatch, *downloads: Download) -> None:
    monkeypatch.setitem(CATALOGUE, "mr", replace(CATALOGUE["mr"], downloads=downloads))


# --------------------------------------------------------------------------------------------- names and options


def test_the_catalogue_is_complete_and_its_checksums_are_well_formed():
    assert set(LOADERS) | {"mnist-writers"} == {info.name for info in catalogue()}
    known = re.compile(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}")
    for info in GENUINE.values():
        assert info.files
        assert all((info.what, info.licence, info.source, info.samples))
        assert info.embedded or info.downloads or info.prepare
        for check in [f.check for v in info.variants for f in v.files] + [d.check for d in info.downloads]:
            assert check is None or known.fullmatch(check)
        for download in info.downloads:
            assert download.check, "a download without a checksum could be anything"
            assert all(re.match(r"https?://", url) for url in download.urls)


def test_a_misspelt_name_or_option_is_answered_with_the_nearest():
    with pytest.raises(EquipoiseError, match="did you mean 'fashion-mnist'"):
        load("fashion_mnist")
    with pytest.raises(EquipoiseError, match="did you mean 'vocabulary'"):
        load("sst", vocabluary=5)
    with pytest.raises(EquipoiseError, match="load mnist"):
        load("mnist-writers")


@pytest.mark.parametrize(("name", "options"), [("sst", {"fine": 1}), ("mr", {"length": "9"}), ("mr", {"length": True})])
def test_an_option_of_the_wrong_type_is_refused(name, options):
    with pytest.raises(EquipoiseError, match=f"option {next(iter(options))} is"):
        load(name, **options)


# ------------------------------------------------------------------------------------------------------- finding


def test_folders_are_searched_in_order(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "env"))
    assert where("mr") is None
    for root in (tmp_path / "system", tmp_path / "cache" / "equipoise", tmp_path / "env"):
        put(root / "mr")
        assert where("mr") == root / "mr"


def test_an_incomplete_folder_does_not_hide_a_complete_one(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "env"))
    (put(tmp_path / "env" / "mr") / "rt-polarity.neg").unlink()
    put(tmp_path / "system" / "mr" / "rt-polaritydata")
    assert where("mr") == tmp_path / "system" / "mr" / "rt-polaritydata"
    assert len(load("mr")) == 2


def test_a_named_folder_is_the_only_one_searched(tmp_path):
    put(tmp_path / "system" / "mr")
    with pytest.raises(EquipoiseError, match="missing files"):
        load("mr", folder=tmp_path / "elsewhere")


def test_the_four_emnist_sets_may_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    (tmp_path / "emnist" / "gzip").mkdir(parents=True)
    for name in CATALOGUE["emnist-digits"].files:
        (tmp_path / "emnist" / "gzip" / f"{name}.gz").touch()
    assert where("emnist-digits") == tmp_path / "emnist" / "gzip"
    assert where("emnist-letters") is None


def test_the_error_names_missing_files_checksums_folders_and_the_command(tmp_path, monkeypatch, server):
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path / "env"))
    (put(tmp_path / "env" / "mr") / "rt-polarity.neg").unlink()
    offer(monkeypatch, Download("a", (server[0],), None))
    with pytest.raises(EquipoiseError) as caught:
        load("mr")
    text = str(caught.value)
    assert "rt-polarity.neg" in text
    assert "rt-polarity.pos" not in text
    assert sha(NEGATIVE) in text
    assert "equipoise data get mr" in text
    for root in (tmp_path / "env", tmp_path / "cache" / "equipoise", tmp_path / "system"):
        assert str(root / "mr") in text


def test_a_set_that_has_to_be_prepared_says_how():
    for call in (load, get):
        with pytest.raises(EquipoiseError, match=r"data/femnist/preprocess\.sh"):
            call("femnist")


# ----------------------------------------------------------------------------------------------------- verifying


def test_verify_tells_right_wrong_and_missing_files_apart(tmp_path):
    assert verify("mr") == [("rt-polarity.pos", "missing"), ("rt-polarity.neg", "missing")]
    folder = put(tmp_path / "mr", neg=b"something else\n")
    (tmp_path / "mr" / "rt-polarity.pos").unlink()
    (tmp_path / "mr" / "rt-polarity.pos.gz").write_bytes(gzip.compress(POSITIVE))
    lines = dict(verify("mr", folder=folder))
    assert lines["rt-polarity.pos.gz"] == "ok"
    assert lines["rt-polarity.neg"].startswith("differs: sha256")
    (tmp_path / "mr" / "rt-polarity.pos.gz").write_bytes(gzip.compress(POSITIVE)[:-9])
    assert dict(verify("mr", folder=folder))["rt-polarity.pos.gz"].startswith("differs: unreadable")


def test_verify_admits_that_no_checksum_is_known(tmp_path):
    for name in CATALOGUE["emnist-digits"].files:
        (tmp_path / name).touch()
    assert {status for _, status in verify("emnist-digits", folder=tmp_path)} == {"no checksum known"}


def test_the_embedded_digits_are_intact_and_come_with_their_licence():
    assert verify("digits") == [("digits.npz", "ok")]
    assert "CC BY 4.0" in (get("digits") / "README.md").read_text()
    assert (get("digits") / "digits.npz").stat().st_size < 200_000


# --------------------------------------------------------------------------------------------------- downloading


def test_nothing_is_downloaded_unless_asked_for(monkeypatch, server):
    address, root = server
    put(root)
    offer(monkeypatch, *(Download(name, (address + name,), sha(body)) for name, body in FILES.items()))
    with pytest.raises(EquipoiseError, match="missing files"):
        load("mr")
    assert len(load("mr", download=True)) == 2
    assert len(load("mr")) == 2


def test_the_next_mirror_is_asked_when_one_fails_or_lies(tmp_path, monkeypatch, server):
    address, root = server
    put(root / "good")
    put(root / "bad", pos=b"malware\n")
    mirrors = ("http://127.0.0.1:9/", address + "absent/", address + "bad/", address + "good/")
    offer(monkeypatch, *(Download(n, tuple(m + n for m in mirrors), sha(body)) for n, body in FILES.items()))
    assert get("mr") == tmp_path / "cache" / "equipoise" / "mr"
    assert verify("mr") == [("rt-polarity.pos", "ok"), ("rt-polarity.neg", "ok")]


def test_without_a_network_the_error_names_every_address_tried(tmp_path, monkeypatch):
    urls = ("http://127.0.0.1:9/one", "http://127.0.0.1:9/two")
    offer(monkeypatch, Download("rt-polarity.pos", urls, sha(POSITIVE)))
    with pytest.raises(EquipoiseError) as caught:
        get("mr", folder=tmp_path / "here")
    for word in (*urls, str(tmp_path / "here"), "rt-polarity.pos"):
        assert word in str(caught.value)


@pytest.mark.parametrize("kind", ["archive.zip", "archive.tar.gz"])
def test_only_the_named_members_of_an_archive_are_unpacked(tmp_path, monkeypatch, server, kind):
    address, root = server
    source = put(tmp_path / "source" / "rt-polaritydata")
    (source / "other").write_text("not asked for")
    if kind.endswith("zip"):
        with zipfile.ZipFile(root / kind, "w") as archive:
            for path in source.iterdir():
                archive.write(path, f"rt-polaritydata/{path.name}")
    else:
        with tarfile.open(root / kind, "w:gz") as tar:
            tar.add(source, "rt-polaritydata")
    members = tuple(f"rt-polaritydata/{name}" for name in FILES)
    offer(monkeypatch, Download(kind, (address + kind,), sha((root / kind).read_bytes()), members))
    folder = get("mr", folder=tmp_path / "target")
    assert folder == tmp_path / "target" / "rt-polaritydata"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert len(load("mr", folder=tmp_path / "target")) == 2


def test_a_download_whose_content_is_wrong_is_reported(monkeypatch, server):
    address, root = server
    put(root, neg=b"another\n")
    offer(monkeypatch, *(Download(name, (address + name,), None) for name in FILES))
    with pytest.raises(EquipoiseError, match=r"rt-polarity\.neg: differs"):
        get("mr")


# ------------------------------------------------------------------------------------------------- the real ones

EXPECTED = {
    "mnist": ((70_000, 1, 28, 28), 10, {"part": 2, "writer": 836}),
    "fashion-mnist": ((70_000, 1, 28, 28), 10, {"part": 2}),
    "emnist-byclass": ((814_255, 1, 28, 28), 62, {"part": 2}),
    "emnist-balanced": ((131_600, 1, 28, 28), 47, {"part": 2}),
    "emnist-letters": ((145_600, 1, 28, 28), 26, {"part": 2}),
    "emnist-digits": ((280_000, 1, 28, 28), 10, {"part": 2}),
    "cifar-10": ((60_000, 3, 32, 32), 10, {"part": 2}),
    "cifar-100": ((60_000, 3, 32, 32), 100, {"part": 2, "coarse": 20}),
    "mr": ((10_662, 60), 2, {}),
    "sst": ((9_613, 60), 2, {"part": 2, "official_split": 3}),
    "vehicle": ((1_860, 100), 2, {"writer": 23}),
    "adult": ((48_842, 108), 2, {"part": 2, "education": 16, "sex": 2}),
}


@pytest.fixture
def real(monkeypatch):
    """Loads a dataset from EQUIPOISE_DATA, or skips."""
    monkeypatch.setitem(CATALOGUE, "mr", GENUINE["mr"])

    def loaded(name: str, **options: object):
        if REAL is None:
            pytest.skip("EQUIPOISE_DATA is not set")
        monkeypatch.setenv("EQUIPOISE_DATA", REAL)
        if where(name) is None:
            pytest.skip(f"EQUIPOISE_DATA holds no {name}")
        return load(name, **options)

    return loaded


@pytest.mark.data
@pytest.mark.parametrize("name", EXPECTED)
def test_a_real_dataset_has_its_published_size_and_checksums(real, name):
    shape, classes, attributes = EXPECTED[name]
    data = real(name)
    assert tuple(data.x.shape) == shape
    assert data.y.unique().tolist() == list(range(classes))
    for column, values in attributes.items():
        assert data.attributes[column].unique().tolist() == list(range(values))
    assert not [line for line in verify(name) if line[1].startswith("differs")]


@pytest.mark.data
def test_real_writers_of_mnist_never_share_training_and_test(real):
    data = real("mnist")
    writer, part = data.attributes["writer"], data.attributes["part"]
    train, test = writer[part == 0], writer[part == 1]
    assert (len(train.unique()), len(test.unique())) == (539, 297)
    assert not torch.isin(train, test).any()
    assert (int(train.bincount()[train.unique()].min()), int(train.bincount().max())) == (19, 131)


@pytest.mark.data
def test_real_fine_sst_is_8544_1101_2210(real):
    data = real("sst", fine=True)
    assert data.attributes["official_split"].bincount().tolist() == [8544, 1101, 2210]
    assert data.classes == 5


@pytest.mark.data
def test_real_femnist_is_dark_on_white_and_keeps_its_writers(real):
    data = real("femnist")
    assert data.classes == 62
    assert re.fullmatch(r"torch.Size\(\[\d+, 1, 28, 28\]\)", str(data.x.shape))
    assert float(data.x.float().mean()) > 128
    assert data.attributes["writer"].unique().tolist() == list(range(int(data.attributes["writer"].max()) + 1))
