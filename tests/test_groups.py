"""That tests which share something are handed out together where they run in several processes."""

from __future__ import annotations

import os

import pytest

IN_SEVERAL = "PYTEST_XDIST_WORKER" in os.environ


@pytest.mark.xdist_group("of a kind")
def test_a_test_of_a_group_is_handed_out_with_its_group(request: pytest.FixtureRequest) -> None:
    """xdist goes by the end of an id. Where it lacks the group, each process makes what the group shares."""
    assert request.node.nodeid.endswith("@of a kind") == IN_SEVERAL, "with -n give --dist loadgroup"


def test_whoever_needs_the_toy_is_of_its_group(request: pytest.FixtureRequest) -> None:
    theirs = [item.nodeid for item in request.session.items if "toy" in getattr(item, "fixturenames", ())]
    assert not IN_SEVERAL or all(nodeid.endswith(("@toy", "@gpu")) for nodeid in theirs)
