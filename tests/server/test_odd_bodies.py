"""Any body is answered, or refused with a reason and a status below 500. The fields are generated
from the records that parse them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.server.app import ENDPOINTS, record_of
from tests.server.bodies import BODIES
from tests.server.process import Running
from tests.support.toys import examples

pytestmark = pytest.mark.nightly

HANDLERS = {path: handler for method, path, handler in ENDPOINTS if method == "POST"}
SAME = {"/embeddings", "/completions", "/slots/{number:int}"}  # needs --slot-save-path

LEAVES = st.one_of(
    st.sampled_from(
        (None, True, "", "\0", "\ud800", "\x1b[0m", "<|im_end|>", -1, 0, 2**70, 10**400)
    ),
    st.sampled_from((1e-320, 5e-324, -0.0, 1e308, -1e308, float("nan"), float("inf"))),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def test_bodies_cover_all_endpoints() -> None:
    assert HANDLERS.keys() == {*BODIES} | SAME


@examples(250)
@given(data=st.data())
def test_odd_values_cause_no_internal_error(server: Running, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(BODIES)))
    record, body = record_of(HANDLERS[path]), BODIES[path]
    assert record is not None
    names = st.sampled_from(sorted(field.alias or n for n, field in record.model_fields.items()))
    odd = data.draw(st.dictionaries(names, VALUES, min_size=1, max_size=2))
    reply = server.post(path, body | odd)
    assert reply.status < 500 or reply.status == 501, reply.body
    assert b"Internal" not in reply.body
    python = (b"dictionary", b"tuple")
    assert reply.status == 200 or not any(word in reply.body for word in python)
