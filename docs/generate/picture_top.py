"""The picture of `kubectl inflight top` in the README, from a real cluster: `make picture-top`.

It shows the namespace that is given, or all of them, as the live view does at that moment. Textual draws the screen as
SVG; nothing in it is made up. The web font that it would load is taken out.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from inflight_kubectl.access.cluster import Target
from inflight_kubectl.top.app import TopApp
from inflight_kubectl.top.source import Source

FILE = Path(__file__).parents[1] / "img" / "top.svg"
FONT_FACE = re.compile(r"@font-face \{[^}]*\}\s*")
SIZE = (128, 18)


async def picture(target: Target, seconds: float, service: str | None, size: tuple[int, int]) -> str:
    """The screen after `seconds`, as SVG.

    Args:
        service: the one that is opened; None for the list.
    """
    app = TopApp(Source(target.connect()), interval=1.0)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(2.0)
        if service is not None:
            await pilot.press("slash", *service, "enter", "enter")
        await pilot.pause(seconds)
        return FONT_FACE.sub("", app.export_screenshot(title="kubectl inflight top")).replace("Fira Code", "monospace")


def main() -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(prog="python docs/generate/picture_top.py", description=__doc__)
    parser.add_argument("--namespace", help="default: all")
    parser.add_argument("--service", help="open this one")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to watch before the picture")
    parser.add_argument("--size", type=int, nargs=2, default=SIZE, metavar=("COLUMNS", "LINES"))
    parser.add_argument("--output", type=Path, default=FILE)
    given = parser.parse_args()
    target = Target(namespace=given.namespace, all_namespaces=given.namespace is None)
    drawn = asyncio.run(picture(target, given.seconds, given.service, tuple(given.size)))
    given.output.write_text(drawn)
    print(f"wrote {given.output}")


if __name__ == "__main__":
    main()
