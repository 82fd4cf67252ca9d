"""The only source of randomness in a generation.

Coins and draws are functions of the seed and a position in the text, not of earlier draws."""

import numpy as np

from localspec.decoding.distribution import Distribution, Ids, Probabilities

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_TARGET, _DRAFT, _COIN = range(3)
_WIDE = 32
"""Bits of a depth, or of a node, combined with a position."""


def splitmix64(state: int, number: int) -> int:
    """Output `number` (from 0 on) of the generator that starts at `state`, 64 bits: Steele, Lea and
    Flood 2014, with the constants of Vigna's splitmix64.c."""
    z = (state + (number + 1) * _GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


# The same for arrays. A small array operation takes twice as long with a Python number.
_FACTOR, _FIRST, _SECOND = (
    np.array(factor, np.uint64) for factor in (_GAMMA, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_30, _27, _31, _12 = (np.array(shift, np.uint64) for shift in (30, 27, 31, 12))
_HALF, _UNIT = np.array(0.5), np.array(2.0**-52)


def uniforms(ids: Ids, state: int) -> Probabilities:
    """Outputs of `splitmix64` by number: float64 [n], uniform in (0, 1), odd multiples of 2⁻⁵³."""
    z = ids.astype(np.uint64)
    z *= _FACTOR
    z += np.array((state + _GAMMA) & _MASK, np.uint64)
    z ^= z >> _30
    z *= _FIRST
    z ^= z >> _27
    z *= _SECOND
    z ^= z >> _31
    z >>= _12
    found: Probabilities = z + _HALF
    found *= _UNIT
    return found


class SeededRandom:
    """Counter-based pseudo-random numbers: hashes of seed, purpose, position and token. A position
    is the number of tokens before it.

    A token is drawn as arg max (log p + g), g Gumbel noise of the token (the same as arg max p/E, E
    exponential), so that coupled drafts mostly agree: Daliri et al. 2024, arXiv 2408.07978."""

    __slots__ = ("_coin", "_draft", "_target")

    def __init__(self, seed: int) -> None:
        """`seed`: 0 or more."""
        root = splitmix64(seed & _MASK, 0)
        while seed := seed >> 64:
            root = splitmix64(root ^ (seed & _MASK), 0)
        self._target, self._draft, self._coin = (
            splitmix64(root, purpose) for purpose in (_TARGET, _DRAFT, _COIN)
        )

    def coin(self, probability: float, position: int, node: int) -> bool:
        """True with the given probability (clipped to [0, 1]), for a drafted node of the draft that
        begins at `position`."""
        bits = splitmix64(self._coin, (position << _WIDE) + node) >> 12
        return (bits + 0.5) * 2.0**-52 < probability

    def draw(self, distribution: Distribution, position: int) -> int:
        return _winner(distribution, self._target, position)

    def propose(self, distribution: Distribution, position: int, depth: int) -> int:
        """A drafter's token, `depth` tokens into the draft that begins at a position.

        Independent of the target's draws, and of other drafts. Called again for the distribution
        without that token, it draws without replacement."""
        return _winner(distribution, self._draft, (position << _WIDE) + depth)

    def race(self, distribution: Distribution, position: int) -> Probabilities:
        """The values that `draw` compares, float64 [n]: −p/E for each token, where E is its
        exponential noise; the smallest one wins."""
        return _race(distribution, splitmix64(self._target, position))


def _winner(distribution: Distribution, state: int, number: int) -> int:
    ids = distribution.ids
    if len(ids) == 1:  # at half of all positions in ordinary text
        return ids.item(0)
    return ids.item(_race(distribution, splitmix64(state, number)).argmin())


def _race(distribution: Distribution, state: int) -> Probabilities:
    found = uniforms(distribution.ids, state)
    np.log(found, out=found)
    return np.divide(distribution.probs, found, out=found)
