"""One server for all tests, with the built-in pair."""

from collections.abc import Iterator
from functools import partial

import openai
import pytest

from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.server.process import Running, serving

KEY = "sk-of-the-tests"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that always drafts; one thread, greedy by default."""
    arguments = ("-c", "1024", "-t", "1", "--drafter", "ngram", "--temp", "0", "-v")
    with serving(tmp_path_factory.mktemp("server"), *arguments, key=KEY) as running:
        yield running
        assert running.process.poll() is None, running.log.read_text()


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
def serve(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`localspec serve` in this process, for options that it refuses before it listens."""

    async def listen(*_: object, **__: object) -> None:
        raise AssertionError("it was not refused")

    monkeypatch.setattr("uvicorn.Server.serve", listen)
    return partial(cli, "serve")
