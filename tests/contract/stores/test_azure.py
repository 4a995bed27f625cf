"""Models in a real implementation of Azure's Blob Storage (Azurite): keys, signatures, listings and preconditions."""

import base64

import pytest

from tests.contract.stores.azurite import azurite
from tests.contract.stores.checks import check_replaced, check_served, check_streamed, sentence

pytestmark = pytest.mark.contract

SOURCE = "az://models/tiny"


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    with azurite(tmp_path_factory.mktemp("azurite") / "log") as account:
        account.make_container("models")
        yield account


@pytest.fixture
def engine(account, folder, fresh):
    """Sets the account and the credentials of the engine; returns the function that does."""
    for path in folder.iterdir():
        account.put("models", f"tiny/{path.name}", path.read_bytes())

    def engine(**credentials):
        fresh(INFLIGHT_MODEL_ENDPOINT=account.url, AZURE_STORAGE_ACCOUNT_NAME=account.name, **credentials)

    return engine


def test_a_model_is_streamed_as_it_was_put_with_the_key_of_the_account(engine, account, folder):
    engine(AZURE_STORAGE_ACCOUNT_KEY=account.key)
    check_streamed(SOURCE, folder)


def test_an_engine_serves_a_model_with_the_key_of_the_account(engine, account, tmp_path):
    engine(AZURE_STORAGE_ACCOUNT_KEY=account.key)
    check_served(SOURCE, tmp_path)


def test_a_model_is_streamed_with_a_signature_that_may_read_and_list(engine, account, folder):
    engine(AZURE_STORAGE_SAS_TOKEN=account.signature("rl"))
    check_streamed(SOURCE, folder)


REFUSED = (
    "model source az://models/tiny: the store refuses {} (403): check the credentials, and that they may list and read"
    " the folder"
)


def test_another_key_is_refused_with_a_sentence(engine):
    engine(AZURE_STORAGE_ACCOUNT_KEY=base64.b64encode(bytes(64)).decode())
    assert sentence(SOURCE) == REFUSED.format("its files")


@pytest.mark.parametrize(("may", "what"), [("r", "its files"), ("w", "its files"), ("l", "config.json")])
def test_a_signature_that_may_not_list_or_not_read_is_refused_with_a_sentence(engine, account, may, what):
    engine(AZURE_STORAGE_SAS_TOKEN=account.signature(may))
    assert sentence(SOURCE) == REFUSED.format(what)


def test_a_container_that_is_private_is_refused_without_an_account(engine):
    engine(AZURE_SKIP_SIGNATURE="true")
    assert sentence(SOURCE) == REFUSED.format("its files")


def test_a_key_with_an_end_of_line_is_no_key_and_the_sentence_says_what_to_check(engine, account):
    engine(AZURE_STORAGE_ACCOUNT_KEY=account.key + "\n")
    said = sentence(SOURCE)
    assert said.startswith(f"model source {SOURCE} cannot be opened: ")
    assert said.endswith("Invalid symbol 10, offset 88: check the credentials, the endpoint and the certificates")
    assert account.key not in said


def test_a_container_that_is_not_there_is_named(engine, account):
    engine(AZURE_STORAGE_ACCOUNT_KEY=account.key)
    assert sentence("az://nonesuch/tiny") == (
        "model source az://nonesuch/tiny: the store cannot find its files (404): check bucket, folder and endpoint"
    )


def test_a_shard_that_is_replaced_while_it_is_read_is_an_error(engine, account, folder):
    engine(AZURE_STORAGE_ACCOUNT_KEY=account.key)
    check_replaced(SOURCE, folder, lambda name, content: account.put("models", f"tiny/{name}", content))
