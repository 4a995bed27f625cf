"""Models in an implementation of Google Cloud Storage (fake-gcs-server): service accounts, listings, ranges, ETags."""

import json

import pytest

from tests.contract.stores.checks import check_replaced, check_served, check_streamed, sentence
from tests.contract.stores.fake_gcs import Account, storage

pytestmark = pytest.mark.contract

SOURCE = "gs://models/tiny"
READER, OTHER = Account("reader", ("models",)), Account("other", ("others",))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with storage(tmp_path_factory.mktemp("gcs") / "log") as running:
        running.accounts = [READER, OTHER]
        yield running


@pytest.fixture
def engine(running, folder, fresh):
    """Sets the credentials of the engine; returns the function that does."""
    for path in folder.iterdir():
        running.put(f"tiny/{path.name}", path.read_bytes())

    def engine(**credentials):
        fresh(INFLIGHT_MODEL_ENDPOINT=running.url, **credentials)

    return engine


def test_a_model_is_streamed_as_it_was_put_with_the_key_file_of_an_account(engine, folder):
    engine(GOOGLE_SERVICE_ACCOUNT_KEY=READER.key_file)
    check_streamed(SOURCE, folder)


def test_an_engine_serves_a_model_with_the_key_file_of_an_account(engine, tmp_path):
    engine(GOOGLE_SERVICE_ACCOUNT_KEY=READER.key_file)
    check_served(SOURCE, tmp_path)


def test_an_account_that_may_read_another_bucket_only_is_refused_with_a_sentence(engine):
    engine(GOOGLE_SERVICE_ACCOUNT_KEY=OTHER.key_file)
    assert sentence(SOURCE) == (
        "model source gs://models/tiny: the store refuses its files (403): check the credentials, and that they may"
        " list and read the folder"
    )


@pytest.mark.parametrize(
    "credentials",
    [{"GOOGLE_SERVICE_ACCOUNT_KEY": Account("reader").key_file}, {"GOOGLE_SKIP_SIGNATURE": "true"}],
    ids=["a key that was revoked", "none"],
)
def test_credentials_that_the_store_does_not_know_are_a_sentence(engine, credentials):
    engine(**credentials)
    assert sentence(SOURCE) == (
        "model source gs://models/tiny: the store does not accept the credentials for its files (401): check them"
    )


def test_a_key_file_that_is_cut_is_a_sentence_without_the_key(engine):
    key = json.loads(READER.key_file)
    engine(GOOGLE_SERVICE_ACCOUNT_KEY=json.dumps(key | {"private_key": key["private_key"][:300]}))
    said = sentence(SOURCE)
    assert said.startswith(f"model source {SOURCE} cannot be opened: ")
    assert said.endswith(": check the credentials, the endpoint and the certificates")
    assert not set(key["private_key"].split("\n")) & set(said.split())


def test_a_shard_that_is_replaced_while_it_is_read_is_an_error(engine, running, folder):
    """The server ignores the precondition: the ETag of its answer tells."""
    engine(GOOGLE_SERVICE_ACCOUNT_KEY=READER.key_file)
    check_replaced(SOURCE, folder, lambda name, content: running.put(f"tiny/{name}", content))
