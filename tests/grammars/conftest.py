"""The vocabulary of the built-in draft model."""

from tests.llama.conftest import smaller as smaller
from tests.llama.conftest import vocabulary as vocabulary
