"""Answers to Envoy."""

from inflight_gateway.guests import messages
from inflight_gateway.types import Refusal


def test_a_request_goes_on_with_its_headers_by_the_route_that_they_lead_to():
    for stage in ("request_headers", "request_body"):
        answer = messages.go_on(stage, [("a", "1"), ("b", "ü")], ["c"], {"ns": {"x": "y", "z": "0"}})
        assert answer.WhichOneof("response") == stage
        common = getattr(answer, stage).response
        assert common.clear_route_cache
        options = common.header_mutation.set_headers
        assert [(one.header.key, one.header.raw_value.decode()) for one in options] == [("a", "1"), ("b", "ü")]
        assert all(one.append_action == one.OVERWRITE_IF_EXISTS_OR_ADD for one in options)
        assert list(common.header_mutation.remove_headers) == ["c"]
        fields = answer.dynamic_metadata.fields["ns"].struct_value.fields
        assert {name: value.string_value for name, value in fields.items()} == {"x": "y", "z": "0"}


def test_an_error_quotes_a_client_in_part_only():
    message = "model " + "\U0001f600" * 1_000_000
    answer = messages.refuse(Refusal(404, "model_not_found", message, (("retry-after", "5"),)), "/v1/completions")
    response = answer.immediate_response
    assert response.status.code == 404
    assert b"model_not_found" in response.body
    assert {one.header.key for one in response.headers.set_headers} == {"content-type", "retry-after"}
    assert len(answer.SerializeToString()) < 65_535
