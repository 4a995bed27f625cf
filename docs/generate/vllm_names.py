"""Names of vLLM's endpoints, request fields and flags, read from its source and kept in `vllm_names.json`.

    python -m docs.generate.vllm_names FOLDER

writes the file again from the folder `vllm` of an unpacked wheel ([the plugin's page](../vllm-plugin.md) has the
command that unpacks one).
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = Path(__file__).with_name("vllm_names.json")

_ENTRYPOINTS = "entrypoints"
_REQUESTS = {
    "/v1/chat/completions": ("ChatCompletionRequest",),
    "/v1/completions": ("CompletionRequest",),
    "/v1/responses": ("ResponsesRequest",),
    "/v1/messages": ("AnthropicMessagesRequest",),
    "/v1/messages/count_tokens": ("AnthropicCountTokensRequest",),
    "/v1/embeddings": (
        "EmbeddingCompletionRequest",
        "EmbeddingChatRequest",
        "EmbeddingBatchChatRequest",
        "EmbeddingChatInputRequest",
        "EmbeddingBatchChatInputRequest",
        "TokenEmbeddingRequest",
    ),
    "/v1/score": ("ScoreTextRequest", "ScoreDataRequest", "ScoreQueriesDocumentsRequest", "ScoreQueriesItemsRequest"),
    "/v1/rerank": ("RerankRequest",),
    "/tokenize": ("TokenizeCompletionRequest", "TokenizeChatRequest"),
    "/detokenize": ("DetokenizeRequest",),
}
"""Classes of the bodies by path; of several, a body is one of them."""

_OTHER_PROCESSES = ("cli", "launchers")
"""Rooms of `_ENTRYPOINTS` whose endpoints are not of the API server."""

_METHODS = ("get", "post", "put", "patch", "delete", "websocket")

_FLAGS_OF_DATACLASSES = {"entrypoints/common/cli_args.py": ("BaseFrontendArgs", "FrontendArgs")}
_FLAGS_OF_CALLS = ("engine/arg_utils.py", "entrypoints/cli/serve.py", "entrypoints/common/cli_args.py")


@dataclass(frozen=True, slots=True)
class Names:
    """Names in a version of vLLM. Attributes: endpoints: method and path. fields: of bodies, by path. flags: of
    `vllm serve`."""

    version: str
    endpoints: list[str]
    fields: Mapping[str, list[str]]
    flags: list[str]


def kept() -> Names:
    """Returns the names in the file."""
    return Names(**json.loads(FILE.read_text()))


def read(folder: Path) -> Names:
    """Reads the names from vLLM's source.

    Raises:
        KeyError: a class is missing.
        OSError: a file is missing.
    """
    classes = {
        node.name: node
        for file in sorted((folder / _ENTRYPOINTS).rglob("protocol.py"))
        for node in _parsed(file).body
        if isinstance(node, ast.ClassDef)
    }
    fields = {
        path: sorted({field for name in names for field in _fields(name, classes)}) for path, names in _REQUESTS.items()
    }
    flags = {flag for file in _FLAGS_OF_CALLS for flag in _arguments(_parsed(folder / file))}
    for file, names in _FLAGS_OF_DATACLASSES.items():
        own = {node.name: node for node in _parsed(folder / file).body if isinstance(node, ast.ClassDef)}
        flags |= {f"--{field.replace('_', '-')}" for name in names for field in _annotated(own[name])}
    (version,) = (
        node.value.value
        for node in ast.walk(_parsed(folder / "_version.py"))
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and any(isinstance(target, ast.Name) and target.id == "version" for target in node.targets)
    )
    return Names(str(version), _endpoints(folder / _ENTRYPOINTS), fields, sorted(flags))


def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _endpoints(folder: Path) -> list[str]:
    """Returns the endpoints of the API server, in the order of their paths."""
    rooms = [each for each in sorted(folder.iterdir()) if each.is_dir() and each.name not in _OTHER_PROCESSES]
    files = [*folder.glob("*.py"), *(file for room in rooms for file in room.rglob("*.py"))]
    found = {each for file in files for each in _routes(_parsed(file))}
    return sorted(found, key=lambda each: each.split(" ")[::-1])


def _routes(module: ast.Module) -> Iterator[str]:
    """Yields the method and path of routes whose path is written as text."""
    for node in ast.walk(module):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        path, what = node.args[0], node.func
        name = what.attr if isinstance(what, ast.Attribute) else what.id if isinstance(what, ast.Name) else ""
        if not (isinstance(path, ast.Constant) and isinstance(path.value, str) and path.value.startswith("/")):
            continue
        if name == "add_api_route":
            methods = next(ast.literal_eval(each.value) for each in node.keywords if each.arg == "methods")
        elif (
            isinstance(what, ast.Attribute) and name in _METHODS and ast.unparse(what.value).endswith(("router", "app"))
        ):
            methods = [name.upper()]
        else:
            methods = ["GET"] if name == "Mount" else []
        yield from (f"{method} {path.value}" for method in methods)


def _fields(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Yields the fields of a class and of its base classes among `classes`."""
    yield from _annotated(classes[name])
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _fields(base.id, classes)


def _annotated(node: ast.ClassDef) -> Iterator[str]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            annotation = ast.unparse(each.annotation)
            if not each.target.id.startswith("_") and not annotation.startswith("ClassVar"):
                yield each.target.id


def _arguments(module: ast.Module) -> Iterator[str]:
    """Yields the long flags that `add_argument` gets as text."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            texts = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            yield from (text for text in texts if text.startswith("--"))


if __name__ == "__main__":
    FILE.write_text(json.dumps(asdict(read(Path(sys.argv[1]))), indent=1) + "\n")
