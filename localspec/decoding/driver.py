"""Answers what one answer asks for."""

from __future__ import annotations

from collections.abc import Generator

from localspec.decoding.interfaces import Commit, PassRequest, PassResult, Step, Target
from localspec.decoding.loop import Requests
from localspec.decoding.session import Session


def drive(session: Session, requests: Requests, target: Target) -> Generator[Step, None, None]:
    """The steps of one answer, with a target of its own.

    However the iteration ends, the caches hold a beginning of `session.context` and nothing
    else."""
    result: PassResult | None = None
    try:
        while True:
            try:
                event = requests.send(result)
            except StopIteration:
                return
            result = None
            if isinstance(event, PassRequest):
                result = target.forward(event)
            elif isinstance(event, Commit):
                target.commit(event.tree, event.path)
            else:
                yield event
    finally:
        try:
            requests.close()
        finally:
            target.rollback(session.context)
