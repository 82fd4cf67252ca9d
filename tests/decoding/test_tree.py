"""Token trees against their definition, on trees of any shape."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localspec.decoding.distribution import Distribution
from localspec.decoding.tree import PADDING, ROOT, TokenTree
from tests.support.toys import examples


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    """Every node hangs from any node before it, or from ROOT."""
    tree = TokenTree()
    for node in range(draw(st.integers(0, 14))):
        parent = draw(st.integers(ROOT, node - 1))
        tree.add(draw(st.integers(0, 3)), parent, "toy")
    return tree


@st.composite
def padded_trees(draw: st.DrawFn) -> tuple[TokenTree, int]:
    """The same with padding anywhere below it, and how many nodes were proposed."""
    tree = draw(trees())
    proposed = len(tree)
    for node in range(proposed, proposed + draw(st.integers(0, 6))):
        tree.pad(draw(st.integers(0, 3)), draw(st.integers(ROOT, node - 1)))
    return tree, proposed


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
def test_two_nodes_share_a_leaf_only_if_one_is_an_ancestor_of_the_other(tree: TokenTree) -> None:
    """Why llama.cpp's mask (same sequence, not later) shows a node its ancestors and no other."""
    numbers = tree.leaf_numbers()
    for one in range(len(tree)):
        for other in range(len(tree)):
            related = is_below(tree, one, other) or is_below(tree, other, one)
            assert bool({*numbers[one]} & {*numbers[other]}) == related


@examples(50)
@given(tree=trees())
def test_parents_come_before_their_children(tree: TokenTree) -> None:
    assert all(parent < node for node, parent in enumerate(tree.parents))
    for parent in range(ROOT, len(tree)):
        children = [node for node in range(len(tree)) if tree.parents[node] == parent]
        assert tree.children(parent) == children


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


@examples(50)
@given(tree=trees())
def test_chain_is_a_tree_without_siblings(tree: TokenTree) -> None:
    assert tree.is_chain() == (tree.parents == list(range(ROOT, len(tree) - 1)))


@examples(50)
@given(tree=trees(), token=st.integers(0, 3))
def test_child_with_a_token_is_the_first_that_carries_it(tree: TokenTree, token: int) -> None:
    for node in range(ROOT, len(tree)):
        carriers = [child for child in tree.children(node) if tree.tokens[child] == token]
        assert tree.child_with(node, token) == (carriers[0] if carriers else None)


def test_chain_of_tokens_is_chosen_and_not_drawn() -> None:
    tree = TokenTree.chain([5, 6, 5], "ngram")
    assert (tree.tokens, tree.parents, tree.depths) == ([5, 6, 5], [ROOT, 0, 1], [1, 2, 3])
    assert (tree.proposals, tree.sources) == ([None] * 3, ["ngram"] * 3)
    assert tree.tip() == 2
    assert tree.leaf_numbers() == [[0], [0], [0]]


def test_empty_tree_is_plain_decoding() -> None:
    tree = TokenTree()
    assert (len(tree), tree.tip(), tree.is_chain(), tree.leaf_numbers()) == (0, ROOT, True, [])


def test_node_keeps_who_proposed_it_and_what_it_was_drawn_from() -> None:
    tree, q = TokenTree(), Distribution.certain(3)
    assert tree.add(3, ROOT, "model", q) == 0
    assert tree.add(4, ROOT, "ngram") == 1
    assert tree.proposals == [q, None]
    assert tree.sources == ["model", "ngram"]
    assert not tree.is_chain()


# Padding.


@examples(50)
@given(made=padded_trees())
def test_padding_stands_behind_what_was_proposed(made: tuple[TokenTree, int]) -> None:
    tree, proposed = made
    assert tree.proposed == proposed
    assert tree.sources == ["toy"] * proposed + [PADDING] * (len(tree) - proposed)


@examples(50)
@given(made=padded_trees())
def test_padding_is_a_node_like_any_other(made: tuple[TokenTree, int]) -> None:
    """A pass, a mask and a rule make no difference: the same tree if all of it were proposed."""
    padded, _ = made
    tree = TokenTree()
    for token, parent in zip(padded.tokens, padded.parents, strict=True):
        tree.add(token, parent, "toy")
    assert (padded.depths, padded.proposals) == (tree.depths, [None] * len(tree))
    assert padded.leaf_numbers() == tree.leaf_numbers()
    assert (padded.tip(), padded.is_chain()) == (tree.tip(), tree.is_chain())
    for node in range(ROOT, len(tree)):
        assert padded.children(node) == tree.children(node)
        assert padded.path_tokens(node) == tree.path_tokens(node)


def test_padding_is_numbered_on() -> None:
    tree = TokenTree.chain([5, 6], "ngram")
    assert tree.proposed == 2
    assert tree.pad(7, 1) == 2
    assert tree.pad(8, 2) == 3
    assert (len(tree), tree.proposed) == (4, 2)
    assert (tree.tokens, tree.parents) == ([5, 6, 7, 8], [ROOT, 0, 1, 2])
    assert tree.path(3) == [0, 1, 2, 3]


def test_tree_of_nothing_but_padding_proposes_nothing() -> None:
    tree = TokenTree()
    tree.pad(7, ROOT)
    assert (len(tree), tree.proposed) == (1, 0)
