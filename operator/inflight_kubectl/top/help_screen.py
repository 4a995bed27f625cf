"""The list of keys."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

TEXT = """[b]Keys[/b]
  ↑ ↓  j k        move            g G   first, last
  Enter           open a service  Esc   back
  /               filter: words in name, namespace, state or model
  s   r           sort by the next column; reverse the order
  Tab             from pods to decisions and back
  w               why: the conditions of the service in full
  Ctrl+R          ask an API server that is away again
  ?   q           this help; quit

[b]Columns[/b]
  READY    replicas ready/ordered; !N: N of them are blocked
  TTFT     p95 of the time to first token; ! over the target
  TPOT     p95 of the time per output token; ! over the target
  LIMITS   max_num_seqs/max_num_batched_tokens in force
  LAST     age of the last decision

Services show what the operator wrote to their status, at least
once a minute while figures move. Pods are read from the engines."""


class HelpScreen(ModalScreen[None]):
    """Keys and columns; any of Esc, q, ? closes it."""

    CSS = """
    HelpScreen { align: center middle; }
    HelpScreen > Static {
        width: 72; height: auto; max-height: 100%; padding: 0 2; border: round $primary; background: $surface;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,h,enter", "app.pop_screen", "Close")]

    def compose(self) -> ComposeResult:
        """The text in a box."""
        yield Static(TEXT)
