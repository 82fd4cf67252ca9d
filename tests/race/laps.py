"""A race that is made up."""

from localspec.race import LOCALSPEC, PLAIN, Lap


def sample() -> list[Lap]:
    """Two lanes of five tokens, in five passes and in two."""
    words = ["One ", "two ", "three\n", "four ", "five."]
    plain = [Lap(PLAIN, word, (number,), 1.0 + number) for number, word in enumerate(words)]
    first = Lap(LOCALSPEC, "One ", (0,), 1.25)
    rest = Lap(LOCALSPEC, "".join(words[1:]), (1, 2, 3, 4), 3.0)
    return [plain[0], first, plain[1], rest, *plain[2:]]
