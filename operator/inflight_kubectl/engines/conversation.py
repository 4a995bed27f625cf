"""A conversation with a service: the messages so far, and one question at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inflight_kubectl.load.answers import Answer, AnswerError

if TYPE_CHECKING:
    from inflight_kubectl.access.resources import Service
    from inflight_kubectl.engines.engine_access import PortForward


@dataclass(slots=True)
class Conversation:
    """Attributes:
    options: fields of each request beside the messages: model, max_tokens, ...
    headers: headers of each request.
    system: the system prompt; empty for none.
    messages: questions and answers so far, without the system prompt.
    """

    options: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)
    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)

    def reset(self) -> None:
        """Clears all questions and answers; the system prompt stays."""
        self.messages.clear()

    def ask(self, forward: PortForward, question: str, show: Callable[[str, str], None]) -> tuple[Answer, bool]:
        """Sends a question and reads the answer; both become part of the conversation.

        Args:
            show: called with the text and the aside of each event as it arrives.

        Returns:
            The answer, and whether it is complete: Ctrl-C ends it early, and the text received so far is kept.

        Raises:
            Problem: the engine rejects the request, or the answer ends too early. The question is dropped.
        """
        answer = Answer(time.monotonic())
        self.messages.append({"role": "user", "content": question})
        try:
            asyncio.run(self._read(forward, answer, show))
        except KeyboardInterrupt:
            whole = False
        except BaseException:
            self.messages.pop()
            raise
        else:
            whole = True
        if answer.text:
            self.messages.append({"role": "assistant", "content": answer.text})
        else:
            self.messages.pop()
        return answer, whole

    async def _read(self, forward: PortForward, answer: Answer, show: Callable[[str, str], None]) -> None:
        from inflight_kubectl.load.client import CHAT, Client, DisconnectedError

        system = [{"role": "system", "content": self.system}] if self.system else []
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        try:
            async with Client(forward.url, {**forward.headers, **self.headers}) as client:
                await client.ask(
                    {**self.options, "messages": system + self.messages, **usage},
                    answer,
                    path=CHAT,
                    show=lambda piece: show(piece, answer.aside),
                )
        except DisconnectedError as error:
            why = error.what.removeprefix("connection: ")
            raise forward.problem or AnswerError(f"the connection to the engine failed: {why}") from error


def served_name(service: Service) -> str:
    """Returns the name that requests give in `model`."""
    return str((service.spec.get("model") or {}).get("servedName") or service.name)
