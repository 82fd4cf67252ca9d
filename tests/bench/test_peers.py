"""Peers: ik_llama-cpp-python's process, by made-up bindings, and llama-cpp-python."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import localspec
from localspec import ModelOptions
from localspec.bench.benchmark import BenchSettings, measure
from localspec.bench.ik_child import choose
from localspec.bench.peers import LOOKUPS, IkLlama, Peers, PythonLlama
from localspec.bench.report import PairResults
from localspec.bench.samples import BenchPrompt, Question, Sample
from localspec.bench.suites import load_suites
from localspec.errors import NativeError, UsageError
from localspec.llama.context import Context
from localspec.llama.model import Model
from tests.bench.samples import executable, peer_setup
from tests.support.greedy import divergence, greedy

pytestmark = pytest.mark.nightly

PROMPT = BenchPrompt("story-0", "story", "Once upon a time")

PYTHON = """\
#!{python}
import runpy, sys
sys.path.insert(0, {folder!r})
assert sys.argv[1] == "-I"
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

BINDINGS = """\
# A model of 50 tokens which says the next number after each, and ends with 20.
import ctypes, os, sys
from types import SimpleNamespace as Params

model, cache = None, {}

def llama_backend_init():
    print("what the library writes to standard output")

def llama_model_default_params():
    return Params(repack_tensors=False, use_mmap=True)

def llama_model_load_from_file(path, params):
    if not path.endswith(b".gguf"):
        return None
    assert params.repack_tensors and not params.use_mmap
    return 1

def llama_context_default_params():
    return Params(flash_attn=False)

def llama_init_from_model(model, params):
    assert params.flash_attn
    assert (params.n_threads, params.n_threads_batch) == (2, 2)
    return params

llama_model_get_vocab = lambda model: 2
llama_vocab_n_tokens = lambda vocab: 50
llama_kv_cache_clear = lambda context: cache.clear()
llama_batch_free = lambda batch: None
llama_token_is_eog = lambda model, token: token == 20

def llama_decode(context, batch):
    tokens, position = batch
    assert position == len(cache), "no hole, and nothing twice"
    assert len(tokens) < 32
    if 13 in tokens:
        sys.exit("GGML_ASSERT(S > 0) failed")
    if len(cache) + len(tokens) > context.n_ctx:
        return 1
    cache.update(enumerate(tokens, position))
    return 0

def llama_get_logits_ith(context, row):
    said = (cache[len(cache) - 1] + 1) % 50
    return ctypes.cast((ctypes.c_float * 50)(*[2.0 * (n == said) for n in range(50)]),
                       ctypes.POINTER(ctypes.c_float))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python with a stand-in for the package ik_llama_cpp."""
    package = tmp_path / "packages" / "ik_llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "_ctypes_api.py").write_text(BINDINGS)
    batch = "def make_batch_range(tokens, *, pos_start): return tokens, pos_start\n"
    (package / "_internals.py").write_text(batch)
    about = package.parent / "ik_llama_cpp_python-9.9.dist-info"
    about.mkdir()
    said = "Metadata-Version: 2.1\nName: ik-llama-cpp-python\nVersion: 9.9"
    (about / "METADATA").write_text(said)
    program = PYTHON.format(python=sys.executable, folder=str(package.parent))
    return executable(tmp_path / "python", program)


Arms = Callable[..., IkLlama]


@pytest.fixture
def arms(python: Path) -> Iterator[Arms]:
    with ExitStack() as stack:

        def made(
            *, tokens: tuple[int, ...] = (1, 2, 3), python: Path = python, context: int = 2048
        ) -> IkLlama:
            said = {"tokenize": lambda _: list(tokens), "context": context}
            arm = IkLlama(python, peer_setup(Path("m.gguf"), **said))
            stack.callback(arm.close)
            return arm

        yield made


def answer(arm: IkLlama, max_tokens: int = 5) -> Sample:
    return arm.generate(Question(PROMPT, 0.0, 7, max_tokens))


def test_sample_counts_tokens_after_the_first(arms: Arms) -> None:
    arm = arms()
    for _ in range(2):
        sample = answer(arm)
        assert (sample.token_ids, sample.text) == ((4, 5, 6, 7, 8), "4 5 6 7 8 ")
        assert (sample.tokens, sample.passes) == (4, 4)
        assert sample.seconds > 0
    assert answer(arm, 1).seconds == 0
    assert arm.command.startswith("ik_llama-cpp-python 9.9: m.gguf, repack_tensors=True")


@pytest.mark.parametrize(
    ("chances", "kept"),
    [
        # The first four are 0.95 together, the fifth is left out by that alone.
        ([0.022, 0.5, 0.3, 0.026, 0.1, 0.052], [1, 2, 4, 5]),
        # The first three are 0.95 together; the second is less than 0.05 of the best.
        ([0.025, 0.9, 0.045 - 1e-6, 0.03], [1]),
    ],
)
def test_sampling_truncation(chances: list[float], kept: list[int]) -> None:
    row = np.log(np.array(chances, np.float32))
    drawn = [choose(row, 1.0, np.random.default_rng(seed)) for seed in range(2000)]
    shares = np.bincount(drawn, minlength=len(row)) / 2000
    wanted = np.array([chance if token in kept else 0.0 for token, chance in enumerate(chances)])
    assert (shares[wanted == 0] == 0).all()
    assert shares == pytest.approx(wanted / wanted.sum(), abs=0.04)
    assert choose(row, 0.0, np.random.default_rng(1)) == 1


def test_process_that_dies(arms: Arms) -> None:
    others = psutil.Process().children()  # of other files' fixtures
    with pytest.raises(NativeError, match=r"before it had answered: GGML_ASSERT.*status 1"):
        answer(arms(tokens=(12, 13)))
    assert psutil.Process().children() == others
    with pytest.raises(NativeError, match=r"a pass over 1 tokens failed with status 1"):
        answer(arms(context=16, tokens=(1,) * 12), 10)


def test_missing_program_or_module(arms: Arms, tmp_path: Path) -> None:
    others = psutil.Process().children()
    with pytest.raises(UsageError, match="cannot be run: "):
        arms(python=tmp_path / "none")
    (tmp_path / "packages" / "ik_llama_cpp" / "_internals.py").unlink()
    with pytest.raises(NativeError, match=r"before it had started: .*No module named"):
        arms()
    assert psutil.Process().children() == others


NEAR_TIE = 0.1
"""Logits; passes over batches move the gap between two tokens by 0.06 here."""


@pytest.mark.parametrize("lookup", LOOKUPS.values())
def test_llama_cpp_python_matches(draft_path: Path, lookup: int | None) -> None:
    # One thread: two would spin for each other wherever the tests share a core.
    options = ModelOptions(context=256, threads=1)
    with Model(draft_path, options) as opened, closing(Context.open(opened, options)) as context:
        tokenize = partial(opened.vocabulary.tokenize, special=True, add_bos=True)
        prompts = [
            BenchPrompt("a", "story", "<|user|>Tell me a story about a fox.<|end|><|assistant|>"),
            BenchPrompt("b", "copy", "One, two, three, four. One, two, three, four. One, two,"),
        ]
        setup = peer_setup(draft_path, tokenize=tokenize, threads=1)
        with closing(PythonLlama("peer", setup, lookup)) as arm:
            for prompt in prompts:
                ids = tokenize(prompt.text)
                expected = greedy(context, ids, 40)
                sample = arm.generate(Question(prompt, 0.0, 1, 40))
                # `Llama` attends without flash attention, which rounds otherwise: near-ties flip.
                parted = divergence(context, ids, expected, sample.token_ids)
                assert parted is None or (parted[0] > 5 and abs(parted[1]) < NEAR_TIE)
                written = b"".join(map(opened.vocabulary.piece, sample.token_ids))
                assert sample.text == written.decode("utf-8", "replace")
                assert sample.tokens == len(sample.token_ids) - 1
                assert sample.seconds > 0
                assert sample.passes is not None
                assert sample.accepted == sample.tokens - sample.passes
                assert bool(sample.drafted) == (lookup is not None)
            again = [arm.generate(Question(prompts[0], 0.8, seed, 20)) for seed in (3, 3, 4)]
    assert again[0].token_ids == again[1].token_ids != again[2].token_ids


def test_prompt_lookup_beyond_one_chunk(draft_path: Path) -> None:
    prompt = [0, *range(300, 400)] * 6
    setup = peer_setup(draft_path, tokenize=lambda _: prompt, threads=1, context=1024)
    with closing(PythonLlama("peer", setup, 2)) as arm:
        assert arm.generate(Question(PROMPT, 0.0, 1, 12)).tokens > 0


# A pair measured with peers: who takes part, and what is said of who does not.


def test_failing_peers_are_dropped_with_a_reason() -> None:
    python = Path(sys.executable)
    options = ModelOptions(context=256, threads=1)
    peers = Peers(llama_server=python, configurations=("plain",), ik_python=python)
    asked: dict[str, Any] = {"temperatures": [0.0], "groups": ["plain"], "turns": 1}
    asked |= {"prompts": load_suites(suites=["story"], per_suite=1), "max_tokens": 4, "seed": 1}
    settings = BenchSettings(options=options, peers=peers, **asked)
    results: list[PairResults] = []
    measure("embedded", partial(localspec.load, options=options), settings, results, lambda _: None)
    (report,) = results
    assert "exited while starting" in report.dropped["llama-server plain"]
    assert "No module named 'ik_llama_cpp'" in report.dropped["ik_llama-cpp-python"]
    assert "llama-cpp-python plain" in {sample.arm for sample in report.samples}
