"""Suites: what each installs, and the tests that do not pass, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

FOLDER = Path(__file__).parent

DIRECT, GATEWAY = "direct", "gateway"
WAYS = (DIRECT, GATEWAY)

PYTEST = "pytest==9.2.0"

_NO_IMAGES = "models read text only"


@dataclass(frozen=True, slots=True, eq=False)
class Suite:
    """A file of tests that run in an environment of their own, which has none of this repository's packages.

    Attributes:
        name: for `--only`; names the file of tests and that of pins too.
        count: tests that run each way; fewer are a fault.
        requirements: that are installed beside pytest; the first is the client. `pins` has all of their dependencies.
        options: of pytest.
        ways: that lead from the client to the engine; the gateway forwards HTTP only.
        known: reason by pattern (`fnmatch`) of the ids of tests that do not pass, each behind `direct` or `gateway`.
    """

    name: str
    count: int
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()
    ways: tuple[str, ...] = WAYS
    known: Mapping[str, str] = field(default_factory=dict)

    @property
    def client(self) -> str:
        """Package and version; nothing where the tests find the client on this machine."""
        return " ".join(self.requirements[:1]).replace("==", " ")

    @property
    def tests(self) -> Path:
        return FOLDER / f"test_{self.name.replace('-', '_')}.py"

    @property
    def pins(self) -> Path:
        return FOLDER / "pins" / f"{self.name}.txt"

    def reason(self, test: str, way: str) -> str | None:
        """Returns why a test does not pass that way, `direct` or `gateway`; None: it must."""
        return next((why for pattern, why in self.known.items() if fnmatchcase(f"{way} {test}", pattern)), None)


SUITES = (
    Suite(
        "llm-comply",
        28,
        ("llm-comply==0.5.0",),
        known={
            "*image-input*": _NO_IMAGES,
            "direct *chat-error-handling*": "`model` is optional, as in vLLM: without one it is the served model",
        },
    ),
    Suite("openai", 15, ("openai==3.54.0", "anthropic==2.12.0")),
    Suite("anthropic", 8, ("anthropic==2.12.0",)),
    Suite("instructor", 4, ("instructor==1.17.0",)),
    Suite("openai-agents", 6, ("openai-agents==0.24.0",)),
    Suite("pydantic-ai", 12, ("pydantic-ai-slim[openai,anthropic]==2.68.0",)),
    Suite("schemathesis", 34, ("schemathesis==4.32.5", "llm-comply==0.5.0")),
    Suite("litellm", 12, ("litellm[proxy]==1.106.2",)),
    Suite(
        "langchain",
        44,
        ("langchain-openai==1.7.3", "langchain-tests==1.1.9"),
        # langchain-openai keeps its asynchronous client, which is of one event loop, for all models.
        options=(
            *("-o", "asyncio_mode=auto"),
            *("-o", "asyncio_default_fixture_loop_scope=session"),
            *("-o", "asyncio_default_test_loop_scope=session"),
        ),
        known={
            "*test_agent_loop*": "the built-in model calls no tool where it need not",
            "*test_json_mode*": "the built-in model does not follow a schema that is described in words",
        },
    ),
    Suite("lm-eval", 6, ("lm-eval[api]==0.4.13", "transformers==5.23.0")),
    Suite("smg", 10, ("smg==1.13.0", "openai==3.54.0"), ways=(DIRECT,)),
    Suite("dynamo", 2, ("ai-dynamo-runtime==1.6.1",), ways=(DIRECT,)),
)
