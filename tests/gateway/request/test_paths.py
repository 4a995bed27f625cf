"""The table of paths that clients of the gateway reach."""

import pytest

from inflight_gateway.request.paths import GENERATING, PATHS, Answers, path_of


@pytest.mark.parametrize("path", sorted(GENERATING))
def test_generating_paths_take_posts_only(path):
    assert (path_of(path).answers, path_of(f"{path}?a=b").methods) == (Answers.GENERATION, {"POST"})


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/qwen", "/v1/models/owner%2Fname", "/v1/models/a/b", "/health", "/ping"]
)
def test_the_gateway_answers_models_and_health(path):
    assert (path_of(path).answers, path_of(path).methods) == (Answers.GATEWAY, {"GET", "HEAD"})


@pytest.mark.parametrize(
    "path", ["/tokenize", "/detokenize", "/version", "/tokenizer_info", "/v1/messages/count_tokens"]
)
def test_engines_answer_what_generates_nothing(path):
    assert path_of(path).answers is Answers.ENGINE


HIDDEN = (
    "/", "", "/metrics", "/ready", "/admin", "/admin/x", "/v1/runtime_config", "/favicon.ico", "/v1/models/", "/docs",
    "/v1/responses/resp_1", "/v1/messages/batches", "/v1/rerank/", "//metrics", "/%6detrics", "/x/../metrics",
    "/v1/completions/", "//v1/completions",
    "/v1/%63ompletions", "/v1/chat/../completions", "/V1/COMPLETIONS", "/v1/completions;x", "http://a.b/v1/completions",
)  # fmt: skip


@pytest.mark.parametrize("path", HIDDEN)
def test_all_other_paths_and_spellings_are_hidden(path):
    assert path_of(path) is None


def test_every_path_of_the_table_is_found():
    assert all(path_of(name) is path for name, path in PATHS.items())
