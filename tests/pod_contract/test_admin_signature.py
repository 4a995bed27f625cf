"""The signature of admin calls."""

from inflight_contract.admin_signature import authorization, is_proof, proof, signature

POD = "11111111-2222-3333-4444-555555555555"
SIGNED = "7c9d19bb91748416757233dbfb8d8f5bd3884ff2f162a9ebfcd7f3b3c54a4081"
PROOF = "c559567339f3a615300c9714a0a1acf03a17284afccfca99121c73c950b26fba"


def test_known_answer():
    signed = signature(b"token", "PATCH", "/v1/runtime_config", POD, "1700000000", b'{"revision": 7}')
    assert signed == SIGNED
    assert authorization(POD, "1700000000", signed) == (
        f"Inflight-HMAC-SHA256 pod={POD},time=1700000000,signature={SIGNED}"
    )
    assert proof(b"token", signed) == PROOF


def test_only_the_proof_of_this_call_under_this_token_is_one():
    assert is_proof(b"token", SIGNED, PROOF)
    assert not is_proof(b"other", SIGNED, PROOF)
    assert not is_proof(b"token", SIGNED[::-1], PROOF)
    for wrong in ("", PROOF.upper(), PROOF[:-1], "é" * 64, "\udcff"):
        assert not is_proof(b"token", SIGNED, wrong)
