"""Models on a web server with TLS (aiohttp's): a private authority, accounts, ranges and preconditions."""

import asyncio
import ssl
import threading

import pytest
from aiohttp import web

from tests.contract.stores.checks import check_replaced, check_served, check_streamed, sentence
from tools.localcluster.node import certificates
from tools.localcluster.node.certificates import Leaf
from tools.measure.served import free_port

pytestmark = pytest.mark.contract

READER, OTHER = "Bearer reader", "Bearer other"


@web.middleware
async def check_account(request, handler):
    if "Authorization" not in request.headers:
        raise web.HTTPUnauthorized
    if request.headers["Authorization"] != READER:
        raise web.HTTPForbidden
    return await handler(request)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """The folder with the certificate of the server, `files.crt`, and that of its authority, `ca.crt`."""
    path = tmp_path_factory.mktemp("certificates")
    certificates.ensure(path, (Leaf("files", "files", dns_names=("localhost",)),))
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory, folder, authority):
    """The files of a folder `tiny`; yields it and the URL of the server."""
    root = tmp_path_factory.mktemp("site")
    (root / "tiny").mkdir()
    application = web.Application(middlewares=[check_account])
    application.router.add_static("/", root)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority / "files.crt", authority / "files.key")
    loop, port = asyncio.new_event_loop(), free_port()

    async def start():
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield root / "tiny", f"https://localhost:{port}"
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def source(site, folder, authority, fresh):
    """Sets the certificates and the account of the engine; returns the URL of the model."""
    for path in folder.iterdir():
        (site[0] / path.name).write_bytes(path.read_bytes())

    def source(authorization=READER, ca="ca.crt"):
        fresh(INFLIGHT_MODEL_CA_FILE=str(authority / ca), INFLIGHT_MODEL_AUTHORIZATION=authorization)
        return f"{site[1]}/tiny"

    return source


def test_a_model_is_streamed_from_a_server_whose_authority_is_private(source, folder):
    check_streamed(source(), folder)


def test_an_engine_serves_a_model_from_a_server_whose_authority_is_private(source, tmp_path):
    check_served(source(), tmp_path)


def test_an_account_that_may_not_read_is_refused_with_a_sentence(source):
    url = source(OTHER)
    assert sentence(url) == (
        f"model source {url}: the store refuses config.json (403): check the credentials, and that they may read it"
    )


def test_a_server_that_wants_an_account_is_named(source, monkeypatch):
    url = source()
    monkeypatch.delenv("INFLIGHT_MODEL_AUTHORIZATION")
    assert sentence(url).endswith(": the store does not accept the credentials for config.json (401): check them")


def test_a_server_of_another_authority_is_not_asked_twice_and_the_sentence_says_what_to_set(source):
    url = source(ca="etcd-ca.crt")
    assert sentence(url) == (
        f"model source {url}: the certificate of the store is refused (UnknownIssuer): check the name of its host, and "
        "name a private authority in model.caConfigMap or INFLIGHT_MODEL_CA_FILE"
    )


def test_a_shard_that_is_replaced_while_it_is_read_is_an_error(source, site, folder):
    check_replaced(source(), folder, lambda name, content: (site[0] / name).write_bytes(content))
