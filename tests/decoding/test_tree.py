"""Token trees against their definition, on trees of any shape."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.tree import ROOT, TokenTree
from tests.support.toys import examples


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Every node hangs from any node before it, or from ROOT."""
    tree = TokenTree()
    for node in range(draw(st.integers(0, 14))):
        parent = draw(st.integers(ROOT, node - 1))
        tree.add(draw(st.integers(0, 3)), parent, "toy")
    return tree


def is_below(tree: TokenTree, node: int, ancestor: int) -> bool:
    while node != ROOT:
        if node == ancestor:
            return True
        node = tree.parents[node]
    return False


@examples(100)
@given(tree=trees())
def test_leaf_numbers_of_a_node_are_those_of_the_leaves_below_it(tree: TokenTree) -> None:
    numbers = tree.leaf_numbers()
    leaves = [node for node in range(len(tree)) if not tree.children(node)]
    number_of = {node: numbers[node][0] for node in leaves}
    assert sorted(number_of.values()) == list(range(len(leaves)))
    for node in range(len(tree)):
        below = [number_of[leaf] for leaf in leaves if is_below(tree, leaf, node)]
        assert sorted(numbers[node]) == sorted(below)
        assert numbers[node] == sorted(numbers[node])


@examples(50)
@given(tree=trees())
def test_path_leads_from_the_first_level_to_the_node(tree: TokenTree) -> None:
    assert tree.path(ROOT) == []
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[-1] == node
        assert [tree.parents[step] for step in path] == [ROOT, *path[:-1]]
        assert [tree.depths[step] for step in path] == list(range(1, len(path) + 1))
        assert tree.path_tokens(node) == [tree.tokens[step] for step in path]


@examples(50)
@given(tree=trees())
def test_tip_is_where_the_first_children_lead_and_the_first_leaf(tree: TokenTree) -> None:
    node = ROOT
    while tree.children(node):
        node = min(tree.children(node))
    assert tree.tip() == node
    if len(tree):
        assert tree.leaf_numbers()[tree.tip()] == [0]


def test_chain_of_tokens_is_chosen_and_not_drawn() -> None:
    tree = TokenTree.chain([5, 6, 5], "ngram")
    assert (tree.tokens, tree.parents, tree.depths) == ([5, 6, 5], [ROOT, 0, 1], [1, 2, 3])
    assert (tree.proposals, tree.sources) == ([None] * 3, ["ngram"] * 3)
    assert tree.tip() == 2
    assert tree.leaf_numbers() == [[0], [0], [0]]
