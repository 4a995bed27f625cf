"""A real terminal for tests: a program in tmux, its keys and its screen."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tools.localcluster.programs import packages
from tools.localcluster.progress import to_stdout

NEEDED = {"tmux": "tmux"}


class Terminal:
    """A window of a tmux server of its own."""

    def __init__(self, socket: str) -> None:
        self._tmux = [packages.require("tmux"), "-L", socket, "-f", "/dev/null"]

    def start(self, command: list[str], environment: Mapping[str, str], columns: int, lines: int) -> None:
        """Runs `command` through a shell, which prints its exit code at the end and stays."""
        exports = [f"{name}={value}" for name, value in environment.items()]
        line = f'{shlex.join(["env", *exports, *command])}; echo "exit code $?"; exec cat'
        self._run("new-session", "-d", "-x", str(columns), "-y", str(lines), line)

    def press(self, *keys: str) -> None:
        """Sends keys by tmux's names, such as `Enter`, `Escape`, `Down`, or text."""
        for key in keys:
            self._run("send-keys", key)
            # Without a pause, Escape and a letter after it are one key, Alt with that letter.
            time.sleep(0.2 if key == "Escape" else 0.05)

    def screen(self) -> str:
        """The text on the screen."""
        return self._run("capture-pane", "-p")

    def sees(self, *parts: str, seconds: float = 30.0) -> str:
        """Waits until the screen has all parts, and returns it.

        Raises:
            TimeoutError: it never has; the message is the last screen.
        """
        deadline = time.monotonic() + seconds
        while True:
            shown = self.screen()
            if all(part in shown for part in parts):
                return shown
            if time.monotonic() > deadline:
                raise TimeoutError(f"{parts} not on the screen:\n{shown}")
            time.sleep(0.1)

    def end(self) -> None:
        """Ends the program and the tmux server."""
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, check=False)

    def _run(self, *arguments: str) -> str:
        return subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=True, timeout=30).stdout


@contextmanager
def terminal(
    name: str, command: list[str], environment: Mapping[str, str], columns: int = 80, lines: int = 24
) -> Iterator[Terminal]:
    """A terminal that runs `command`; tmux is installed where it is missing.

    Args:
        name: of its tmux server, unique on this machine.
    """
    packages.ensure(to_stdout(), NEEDED)
    one = Terminal(name)
    one.start(command, environment, columns, lines)
    try:
        yield one
    finally:
        one.end()
