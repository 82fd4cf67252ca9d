"""The pictures of the chat in the README, from a real run.

    python -m tools.screenshot [FOLDER] [--scale NAME]

Starts the app with a pair of realistic size (see `localspec bench --scale`) without a terminal,
asks it, waits for the answer, and writes what the screen shows as SVG: chat.svg with the figures,
tokens.svg with tokens coloured by their source.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from textual.pilot import Pilot

from localspec.bench.scale import scaled_pair
from localspec.tui.app import ChatApp
from localspec.tui.session.events import PairReference

PROMPTS = (
    "Tell me a story about a fox and a hen.",
    "Tell me the same story again, but the hen is friends with the fox.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="docs", type=Path)
    parser.add_argument("--scale", default="A")
    said = parser.parse_args()
    target, draft = scaled_pair(said.scale)
    said.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ["LOCALSPEC_HOME"] = home
        asyncio.run(take(PairReference(str(target), str(draft)), said.folder))


async def take(pair: PairReference, folder: Path) -> None:
    app = ChatApp(pair, sampling={"temperature": 0.0}, max_tokens=220)
    async with app.run_test(size=(140, 40)) as pilot:
        for prompt in PROMPTS:
            app.prompt.put(prompt)
            await pilot.press("enter")
            await answered(app, pilot)
        app.save_screenshot("chat.svg", str(folder))
        await pilot.press("ctrl+t", "ctrl+t")
        await pilot.pause()
        app.save_screenshot("tokens.svg", str(folder))


async def answered(app: ChatApp, pilot: Pilot[None]) -> None:
    await pilot.pause(0.5)
    while app.conversation_display.doing is not None or app.conversing.running is not None:
        await pilot.pause(0.2)


if __name__ == "__main__":
    main()
