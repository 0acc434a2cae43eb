"""What the comparison with the recorded answers lets pass, and what it does not."""

import pytest

from mini_vllm.tests.golden.server_compare import differences


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [(2571, 2570, True), (2571, 2577, False), (12, 11, False), (498, 499, False), (7, 7, True)],
)
def test_ranks_of_unlikely_tokens_may_change_places_with_their_neighbours(theirs, ours, same):
    found = differences({"x": {"rank": theirs}}, {"x": {"rank": ours}})
    assert found == ([] if same else [f".x.rank: {theirs}, ours {ours}"])


@pytest.mark.parametrize(
    ("theirs", "ours", "same"), [(-1.5, -1.501, True), (-1.5, -1.51, False), (1, True, False), (1, 1.0, False)]
)
def test_numbers(theirs, ours, same):
    assert (differences({"x": theirs}, {"x": ours}) == []) is same
