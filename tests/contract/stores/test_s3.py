"""Models in a real implementation of S3 (moto's server): signatures, accounts, listings, ETags and preconditions."""

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import httpx
import obstore
import pytest
from obstore.store import S3Store

from inflight_engine.models.checkpoints.source import ModelSourceError, resolve
from inflight_engine.models.remote.snapshot import FOLDER_VARIABLE, take_snapshot
from tests.contract.stores.checks import FLAGS, check_replaced, check_served
from tests.engine.server.real_server import RealServer
from tools.measure.served import free_port, process, wait_ready

pytestmark = pytest.mark.contract

PINS = Path(__file__).with_name("moto.txt")
POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::models", "arn:aws:s3:::models/*"]}
    ],
}


class S3:
    """A running server with the bucket `models`, which one account may read."""

    def __init__(self, url):
        self.url = url
        self.make_bucket("models")
        self.store = S3Store(
            "models",
            endpoint=url,
            access_key_id="any",
            secret_access_key="any",
            region="us-east-1",
            client_options={"allow_http": True},
        )
        self.iam(Action="CreateUser", UserName="reader")
        policy = json.dumps(POLICY)
        self.iam(Action="PutUserPolicy", UserName="reader", PolicyName="models", PolicyDocument=policy)
        made = self.iam(Action="CreateAccessKey", UserName="reader")
        self.key, self.secret = (
            re.search(f"<{name}>(.*?)</{name}>", made)[1] for name in ("AccessKeyId", "SecretAccessKey")
        )

    def iam(self, **action):
        return self._ask("POST", "/", urllib.parse.urlencode(action).encode(), service="iam")

    def check_accounts(self, *, on=True):
        """From now on every request needs an account that may do it, or none does."""
        count = b"0" if on else b"inf"
        self._ask("POST", "/moto-api/reset-auth", count, service="moto", content_type="text/plain")

    def put(self, folder, prefix):
        for path in folder.iterdir():
            obstore.put(self.store, f"{prefix}/{path.name}", path.read_bytes())

    def environment(self, **changes):
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "INFLIGHT_MODEL_ENDPOINT": self.url,
            **changes,
        }

    def make_bucket(self, name):
        self._ask("PUT", f"/{name}", service="s3")

    def _ask(self, method, path, body=None, *, service, content_type="application/x-www-form-urlencoded"):
        credential = f"AWS4-HMAC-SHA256 Credential=any/20261123/us-east-1/{service}/aws4_request, SignedHeaders=host"
        headers = {"Authorization": f"{credential}, Signature=none", "Content-Type": content_type}
        asked = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(asked) as answer:
            return answer.read().decode()


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    flags = ("--quiet", "--no-project", "--isolated", "--no-config", "--python", sys.executable)
    port, log = free_port(), tmp_path_factory.mktemp("s3") / "log"
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "run", *flags, "--with-requirements", str(PINS), "moto_server", "-H", "127.0.0.1", "-p", str(port)]
    environment = {"PYTHONPATH": "", "VIRTUAL_ENV": "", "INITIAL_NO_AUTH_ACTION_COUNT": "inf"}
    with process(log, command, environment) as server:
        url = f"http://127.0.0.1:{port}"
        wait_ready(f"{url}/moto-api/data.json", {"moto": (server, log)}, 120)
        yield S3(url)


@pytest.fixture
def account(s3, folder, fresh):
    """The environment of an engine whose account may read the bucket; all others are refused."""
    s3.check_accounts(on=False)
    s3.put(folder, "tiny")
    fresh(**s3.environment())
    s3.check_accounts()
    yield s3
    s3.check_accounts(on=False)


def test_an_engine_serves_a_model_from_s3_to_its_first_token(account, tmp_path):
    check_served("s3://models/tiny", tmp_path)


def test_a_second_engine_reads_the_weights_from_the_first_and_answers_the_same(account, monkeypatch, tmp_path, folder):
    monkeypatch.delenv(FOLDER_VARIABLE)
    peers, asked = tmp_path / "peers.json", {"prompt": "The capital", "max_tokens": 8, "temperature": 0}
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    addresses, answers, servers = {}, [], []
    try:
        for pod in ("first", "second"):
            monkeypatch.setenv("INFLIGHT_POD_UID", pod)
            (tmp_path / pod).mkdir()
            sharing = f"--peers-file {peers} --model-cache {tmp_path / pod}/models --model-cache-size 1Gi"
            server = RealServer(tmp_path / pod, *FLAGS, *sharing.split(), model="s3://models/tiny")
            servers.append(server)
            server.wait_ready()
            answers.append(httpx.post(f"{server.url}/v1/completions", json=asked, timeout=60).json()["choices"])
            addresses[pod] = server.url.removeprefix("http://")
            peers.write_text(json.dumps(addresses))
        pages = [httpx.get(f"{server.url}/metrics", timeout=60).text for server in servers]
    finally:
        for server in servers:
            server.close()
    assert answers[0] == answers[1]
    for page, came_from in zip(pages, ("source", "peers"), strict=True):
        found = dict(re.findall(r'^inflight_weights_read_bytes_total\{from="(\w+)",.*\} (\S+)$', page, re.M))
        assert {name for name, value in found.items() if float(value) > 0} == {came_from}
        assert float(found[came_from]) == size
    assert float(re.search(r"^inflight_peer_sent_bytes_total\{.*\} (\S+)$", pages[0], re.M)[1]) == size


def test_weights_are_those_that_were_put(account, folder):
    found = take_snapshot("s3://models/tiny")
    for shard in found.shards:
        assert bytes(found.store.read(shard, 0, shard.size)) == (folder / shard.name).read_bytes()
        assert bytes(found.store.read(shard, 1000, 2345)) == (folder / shard.name).read_bytes()[1000:2345]


def test_an_account_that_the_store_does_not_know_ends_the_engine_with_a_sentence(account, tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    log = tmp_path / "log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "inflight_engine.cli", "serve", "s3://models/tiny", "--port", "0", *FLAGS]
        assert subprocess.run(command, stdout=output, stderr=output, timeout=200, check=False).returncode == 1
    assert re.match(
        r"error: model source s3://models/tiny: the store refuses its files \(403\): check the cred",
        log.read_text().splitlines()[-1],
    )


def test_an_account_that_may_read_another_bucket_only_is_refused(account):
    account.check_accounts(on=False)
    account.make_bucket("others")
    account.check_accounts()
    with pytest.raises(ModelSourceError, match=r"refuses its files \(403\)"):
        resolve("s3://others/tiny")


def test_a_bucket_that_is_not_there_is_named(account):
    account.check_accounts(on=False)
    with pytest.raises(
        ModelSourceError, match=r"s3://nonesuch/tiny: the store cannot find its files \(404\): check bucket"
    ):
        resolve("s3://nonesuch/tiny")


def test_a_shard_that_is_replaced_while_it_is_read_is_an_error(account, folder):
    def put(name, content):
        account.check_accounts(on=False)
        obstore.put(account.store, f"tiny/{name}", content)
        account.check_accounts()

    check_replaced("s3://models/tiny", folder, put)
