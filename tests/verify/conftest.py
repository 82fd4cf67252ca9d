"""The tiny pair under examination; fakes go where `broken` says."""

import pytest

from localspec import Engine
from localspec.verify.checks import Effort
from localspec.verify.subject import Subject
from tests.engine.conftest import exact_pair, tiny, tiny_exact, tiny_pair

__all__ = ["exact_pair", "tiny", "tiny_exact", "tiny_pair"]

LITTLE = Effort("little", None, 2, 16, (2, 4), 2, 200, 1)


@pytest.fixture
def subject(tiny: Engine) -> Subject:
    return Subject(tiny, lambda text: None)
