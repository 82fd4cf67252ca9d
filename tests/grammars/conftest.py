"""The vocabulary of the embedded draft model."""

from tests.llama.conftest import smaller as smaller
from tests.llama.conftest import vocabulary as vocabulary
