"""Sources of the parts of a text."""

from localspec.chat.figures import Provenance
from localspec.decoding.interfaces import TARGET, Draft, Plan, Step
from localspec.decoding.tree import ROOT, TokenTree

ACUTE, FOX = "é".encode(), "\N{FOX FACE}".encode()
PIECES = (b"", b"one", b" two", b" three", ACUTE[:1], ACUTE[1:], b"", FOX[:2], FOX[2:])


def step(tokens: list[int], sources: list[str], tree: TokenTree, path: list[int]) -> Step:
    plan = Plan("model", depth=4)
    return Step(tokens, sources, plan, Draft(tree), path, path, 0, 0.1, 0.1, 0.0)


def plain(*tokens: int) -> list[Step]:
    return [step([token], [TARGET], TokenTree(), []) for token in tokens]


def provenance_of(*steps: Step) -> Provenance:
    provenance = Provenance(PIECES.__getitem__)
    for each in steps:
        provenance.add(each)
    return provenance


def test_spans_by_source() -> None:
    chain = TokenTree.chain([1, 2], "ngram")
    provenance = provenance_of(step([1, 2, 3], ["ngram", "ngram", TARGET], chain, [0, 1]))
    assert (provenance.spans, provenance.rejected) == ([(7, "ngram"), (6, TARGET)], [])


def test_character_belongs_to_its_last_token() -> None:
    chain = TokenTree.chain([4], "model")
    provenance = provenance_of(step([4, 5], ["model", TARGET], chain, [0]))
    assert provenance.spans == [(1, TARGET)]
    chain = TokenTree.chain([8], "model")
    provenance = provenance_of(*plain(1, 7), step([8, 1], ["model", TARGET], chain, [0]))
    assert provenance.spans == [(3, TARGET), (1, "model"), (3, TARGET)]


def test_rejected_text_keeps_its_position() -> None:
    chain = TokenTree.chain([1, 2, 3], "model")
    provenance = provenance_of(*plain(1), step([1, 3], ["model", TARGET], chain, [0]))
    assert provenance.rejected == [(6, " two three")]


def test_first_branch_of_a_tree_counts_as_rejected() -> None:
    tree = TokenTree()
    root = tree.add(1, ROOT, "model")
    tree.add(2, root, "cascade")
    tree.add(3, root, "model")
    provenance = provenance_of(step([1, 1], ["model", TARGET], tree, [0]))
    assert provenance.rejected == [(3, " two")]
