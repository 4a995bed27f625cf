"""Files of a remote model: found under every scheme, in one version, or refused with one sentence."""

import errno
import json

import pytest

from inflight_engine.models.checkpoints.source import ModelSourceError, resolve
from inflight_engine.models.remote import snapshot, stores
from inflight_engine.models.remote.snapshot import digest, take_snapshot
from tools.measure.served import free_port

SCHEMES = ("http", "s3", "gs", "az")
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "1_Pooling/config.json": b"{}",
    "model.safetensors.index.json": json.dumps(
        {"weight_map": {"a": "model-00002-of-00002.safetensors", "b": "model-00001-of-00002.safetensors"}}
    ).encode(),
    "model-00001-of-00002.safetensors": bytes(100),
    "model-00002-of-00002.safetensors": bytes(200),
}
UNNEEDED = {
    "README.md": b"words",
    "consolidated.safetensors": bytes(300),
    "pytorch_model.bin": bytes(300),
    "original/weights.safetensors": bytes(300),
    "a/b/c.json": b"{}",
}


@pytest.fixture
def model(server):
    server.files |= {f"models/tiny/{name}": content for name, content in (FILES | UNNEEDED).items()}
    server.files["models/tiny-other/config.json"] = b"[]"
    return server


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_files_of_a_model_are_found(model, source, scheme):
    files = resolve(source(scheme, "models/tiny"))

    assert {str(path.relative_to(files.folder)) for path in files.folder.rglob("*") if path.is_file()} - {
        ".files",
        ".lock",
    } == {name for name in FILES if not name.endswith(".safetensors")}
    assert (files.folder / "config.json").read_bytes() == FILES["config.json"]
    assert [(shard.name, shard.size) for shard in files.remote.shards] == [
        ("model-00001-of-00002.safetensors", 100),
        ("model-00002-of-00002.safetensors", 200),
    ]
    assert not any(
        path.endswith((".safetensors", ".bin", ".md")) and method == "GET" for method, path in model.requests
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_range_is_read_as_it_is(model, source, scheme):
    content = bytes(range(256)) * 4
    model.files["models/tiny/model-00001-of-00002.safetensors"] = content
    found = take_snapshot(source(scheme, "models/tiny"))
    assert bytes(found.store.read(found.shards[0], 3, 777)) == content[3:777]


def test_the_second_process_reads_the_version_that_the_first_found(model, source):
    first = resolve(source("s3", "models/tiny"))
    model.files["models/tiny/config.json"] = b"{}"
    model.requests.clear()

    second = resolve(source("s3", "models/tiny"))

    assert (second.folder / "config.json").read_bytes() == FILES["config.json"]
    assert second.remote.shards == first.remote.shards
    assert not model.requests


def test_a_file_that_changes_is_an_error_and_not_a_mix_of_two(model, source):
    found = take_snapshot(source("s3", "models/tiny"))
    model.files["models/tiny/model-00001-of-00002.safetensors"] = bytes([1]) * 100
    with pytest.raises(ModelSourceError, match=r"model-00001-of-00002.safetensors has changed since .*start it again"):
        found.store.read(found.shards[0], 0, 10)


@pytest.mark.parametrize("weak", [False, True])
def test_a_file_that_changes_its_size_is_an_error_without_etags(model, source, weak, monkeypatch):
    """Weak etags match nothing by RFC 9110: the answer's is compared."""
    model.etags = weak
    if weak:
        monkeypatch.setattr(type(model), "etag", lambda store, path: f'W/"{len(store.files[path])}"')
    found = take_snapshot(source("http", "models/tiny"))
    assert bytes(found.store.read(found.shards[0], 0, 10)) == bytes(10)
    model.files["models/tiny/model-00001-of-00002.safetensors"] = bytes(101)
    with pytest.raises(ModelSourceError, match="has changed"):
        found.store.read(found.shards[0], 0, 10)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("fault", ["cut", "limited", "broken"])
def test_a_read_that_fails_is_tried_again(model, source, scheme, fault):
    found = take_snapshot(source(scheme, "models/tiny"))
    path = "models/tiny/model-00002-of-00002.safetensors"
    model.files[path] = model.files[path]
    if fault == "cut":
        model.cuts[path] = [10, 50]
    else:
        model.statuses[path] = [{"limited": 429, "broken": 503}[fault]] * 2
    assert bytes(found.store.read(found.shards[1], 0, 100)) == bytes(100)
    assert model.requests["GET", path] == 3


def test_a_store_that_cuts_every_answer_is_given_up(model, source, monkeypatch):
    monkeypatch.setattr(stores, "_GIVE_UP_SECONDS", 0.0)
    found = take_snapshot(source("s3", "models/tiny"))
    model.cuts["models/tiny/model-00001-of-00002.safetensors"] = [50] * 9
    with pytest.raises(ModelSourceError, match=r"model-00001.* cannot be read \(.*\): check the network"):
        found.store.read(found.shards[0], 0, 100)


def test_a_full_disk_is_a_sentence_that_names_the_folder(model, source, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(snapshot, "write", full)
    with pytest.raises(ModelSourceError, match=r"tiny: its settings .*/files \(No space left on device\): make room"):
        resolve(source("s3", "models/tiny"))


def test_a_store_that_does_not_answer_is_given_up(model, source, monkeypatch):
    monkeypatch.setattr(stores, "_GIVE_UP_SECONDS", 0.0)
    found = take_snapshot(source("s3", "models/tiny"))
    model.statuses["models/tiny/model-00001-of-00002.safetensors"] = [503] * 9
    with pytest.raises(ModelSourceError, match=r"model-00001.* cannot be read \(.*503.*\): check the network") as error:
        found.store.read(found.shards[0], 0, 10)
    assert "\n" not in str(error.value)


def test_why_no_request_could_be_sent_is_said(server, monkeypatch):
    monkeypatch.setattr(stores, "_GIVE_UP_SECONDS", 0.0)
    with pytest.raises(ModelSourceError, match=r"config.json cannot be read \(.*: Connection refused\): check the net"):
        resolve(f"http://127.0.0.1:{free_port()}/tiny")


def test_credentials_that_cannot_be_read_are_a_sentence_that_says_what_to_check(server, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "no base64")
    with pytest.raises(ModelSourceError, match=r"cannot be opened: .*Access Key.*: check the credentials") as error:
        resolve("az://bucket/tiny")
    assert "no base64" not in str(error.value)


@pytest.mark.parametrize("given", ["Bearer ours", "Basic b3Vycw=="])
def test_a_web_server_is_asked_with_the_authorization_of_the_environment(model, source, given, monkeypatch):
    model.authorization = "Bearer ours"
    monkeypatch.setenv("INFLIGHT_MODEL_AUTHORIZATION", given)
    if given == model.authorization:
        assert resolve(source("http", "models/tiny")).remote.shards
    else:
        with pytest.raises(ModelSourceError, match=r"refuses config.json \(403\): check the cred.* may read it"):
            resolve(source("http", "models/tiny"))


@pytest.mark.parametrize("scheme", ["http", "s3", "gs", "az"])
@pytest.mark.parametrize(("status", "sentence"), [(401, r"credentials.*\(401\)"), (403, r"\(403\): check the cred")])
def test_a_store_that_refuses_is_not_asked_again(model, source, scheme, status, sentence):
    found = take_snapshot(source(scheme, "models/tiny"))
    path = "models/tiny/model-00001-of-00002.safetensors"
    model.statuses[path] = [status] * 9
    with pytest.raises(ModelSourceError, match=sentence) as error:
        found.store.read(found.shards[0], 0, 10)
    assert model.requests["GET", path] == 1
    assert "\n" not in str(error.value)


def test_wrong_credentials_are_named(model, source):
    model.access_key = "another"
    with pytest.raises(ModelSourceError, match=r"refuses its files \(403\).*may list and read the folder"):
        resolve(source("s3", "models/tiny"))


def test_credentials_of_the_environment_are_used(model, source):
    model.access_key = "ours"
    assert resolve(source("s3", "models/tiny")).remote.shards


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors.index.json", r"has no model.safetensors and no model.safetensors.index.json"),
        ("model-00002-of-00002.safetensors", r"has no model-00002-of-00002.safetensors, which .*index.json names"),
    ],
)
def test_an_incomplete_folder_says_what_is_missing(model, source, scheme, missing, sentence):
    del model.files[f"models/tiny/{missing}"]
    with pytest.raises(ModelSourceError, match=sentence):
        resolve(source(scheme, "models/tiny"))


def test_a_server_that_refuses_what_it_has_not_has_the_rest(model, source):
    """A public bucket that may not be listed answers so."""
    for name in ("generation_config.json", "modules.json"):
        model.statuses[f"models/tiny/{name}"] = [403]
    assert resolve(source("http", "models/tiny")).remote.shards


def test_a_server_without_ranges_is_refused(model, source):
    model.ranges = False
    with pytest.raises(ModelSourceError, match="does not answer requests for ranges"):
        resolve(source("http", "models/tiny"))


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///folder", "https://host/a?sig=secret", "s3://bucket/a/../b", "s3://bucket//a", "gs://bucket/a#b"],
)
def test_a_wrong_url_is_refused(server, url):
    with pytest.raises(ModelSourceError, match="cannot be opened: it must be"):
        resolve(url)


def test_an_index_that_is_none_is_refused(model, source):
    model.files["models/tiny/model.safetensors.index.json"] = b"[1]"
    with pytest.raises(ModelSourceError, match=r"index.json is no index of weights"):
        resolve(source("s3", "models/tiny"))


def test_an_index_names_no_file_outside_of_the_folder(model, source):
    index = {"weight_map": {"a": "../tiny-other/config.json"}}
    model.files["models/tiny/model.safetensors.index.json"] = json.dumps(index).encode()
    for scheme in SCHEMES:
        with pytest.raises(ModelSourceError, match=r"has no \.\./tiny-other/config.json"):
            resolve(source(scheme, "models/tiny"))


def test_a_folder_of_a_process_alone_is_made(model, source, monkeypatch):
    monkeypatch.delenv(snapshot.FOLDER_VARIABLE)
    assert (resolve(source("s3", "models/tiny")).folder / "config.json").is_file()
    monkeypatch.delenv(snapshot.FOLDER_VARIABLE)


def test_a_digest_tells_names_sizes_and_etags_apart():
    one = stores.RemoteFile("a", 1, "x")
    others = [stores.RemoteFile("b", 1, "x"), stores.RemoteFile("a", 2, "x"), stores.RemoteFile("a", 1, None)]
    assert len({digest([file]) for file in [one, *others]}) == 4
    assert digest([one, others[0]]) == digest([others[0], one])
