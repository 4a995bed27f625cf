import base64

import pytest

from inflight_operator.apply import admin_token


def secret(token):
    return {"data": {"token": base64.b64encode(token).decode()}}


def test_the_token_in_the_live_secret_is_kept():
    assert admin_token(secret(b"kept")) == "kept"


@pytest.mark.parametrize(
    "live", [None, {}, {"data": None}, {"data": {}}, {"data": {"token": "%%%"}}, secret(b""), secret(b"\xff\xfe")]
)
def test_without_a_token_that_can_be_read_a_new_one_is_made(live):
    first, second = admin_token(live), admin_token(live)
    assert first != second
    assert len(first) >= 43, "32 bytes of randomness"
