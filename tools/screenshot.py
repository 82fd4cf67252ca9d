"""Take the screenshots of the chat in the README, from a real run.

    python -m tools.screenshot [FOLDER] [--scale NAME]

Asks a pair of realistic size (`localspec bench --scale`) for a function and a change to it, and
writes the screen as SVG: chat.svg with the figures, tokens.svg with tokens coloured by source.
"""

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from textual.pilot import Pilot

import localspec
from localspec.bench.scale import scaled_pair
from localspec.loading.second_engine import measure_stock
from localspec.tui.app import ChatApp
from localspec.tui.session.background_engine import PairReference

PROMPTS = (
    "Write a Python function that adds two numbers. Only code.",
    "Now subtract instead of adding.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default="docs", type=Path)
    parser.add_argument("--scale", default="R0")
    args = parser.parse_args()
    target, draft = scaled_pair(args.scale)
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ["LOCALSPEC_HOME"] = home
        (named := Path(home, f"{args.scale}.gguf")).symlink_to(target)  # the chat shows names
        with localspec.load(named, draft=draft) as engine:
            engine.calibrate()
            measure_stock(engine, localspec.ModelOptions())
        reference = "smollm2" if args.scale.startswith("R") else str(draft)
        asyncio.run(take(PairReference(str(named), reference), args.folder))


async def take(pair: PairReference, folder: Path) -> None:
    app = ChatApp(pair, sampling={"temperature": 0.0}, max_tokens=100)
    async with app.run_test(size=(140, 40)) as pilot:
        for prompt in PROMPTS:
            app.prompt.set_text(prompt)
            await pilot.press("enter")
            await answered(app, pilot)
        app.save_screenshot("chat.svg", str(folder))
        await pilot.press("ctrl+t", "ctrl+t")
        await pilot.pause()
        app.save_screenshot("tokens.svg", str(folder))


async def answered(app: ChatApp, pilot: Pilot[None]) -> None:
    await pilot.pause(0.5)
    while app.conversation_display.doing is not None or app.chat_session.running is not None:
        await pilot.pause(0.2)


if __name__ == "__main__":
    main()
