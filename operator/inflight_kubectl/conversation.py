"""A conversation with a service: the messages so far, and one question at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inflight_kubectl.answers import Answer, AnswerError, EventReader, refusal

if TYPE_CHECKING:
    import httpx

    from inflight_kubectl.engine_access import PortForward
    from inflight_kubectl.resources import Service

PATH = "/v1/chat/completions"


@dataclass(slots=True)
class Conversation:
    """Attributes:
    options: fields of each request beside the messages: model, max_tokens, ...
    system: the system prompt; empty for none.
    messages: questions and answers so far, without the system prompt.
    """

    options: dict[str, Any]
    system: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)

    def reset(self) -> None:
        """Clears all questions and answers; the system prompt stays."""
        self.messages.clear()

    def ask(
        self, http: httpx.Client, forward: PortForward, question: str, show: Callable[[str], None]
    ) -> tuple[Answer, bool]:
        """Sends a question and reads the answer; both become part of the conversation.

        Args:
            show: called with each piece of text as it arrives.

        Returns:
            The answer, and whether it is complete: Ctrl-C ends it early, and the text received so far is kept.

        Raises:
            Problem: the engine rejects the request, or the answer ends too early. The question is dropped.
        """
        answer = Answer(time.monotonic())
        self.messages.append({"role": "user", "content": question})
        try:
            self._read(http, forward, answer, show)
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

    def _read(self, http: httpx.Client, forward: PortForward, answer: Answer, show: Callable[[str], None]) -> None:
        import httpx

        system = [{"role": "system", "content": self.system}] if self.system else []
        body = {
            **self.options,
            "messages": system + self.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            with http.stream("POST", PATH, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    raise refusal(response.status_code, response.read())
                reader = EventReader()
                for chunk in response.iter_bytes():
                    for data in reader.feed(chunk):
                        if piece := answer.take(data, time.monotonic()):
                            show(piece)
        except httpx.HTTPError as error:
            raise forward.problem or AnswerError(
                f"the connection to the engine failed: {str(error) or type(error).__name__}"
            ) from error
        answer.check_whole()


def served_name(service: Service) -> str:
    """Returns the name that requests give in `model`."""
    return str((service.spec.get("model") or {}).get("servedName") or service.name)
