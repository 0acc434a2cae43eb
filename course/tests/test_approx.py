"""An empty array is close to nothing, in every test of this repository."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.maintainer


@pytest.mark.parametrize("found", [np.zeros(0), np.zeros((0, 3)), [np.zeros(0)]])
def test_an_empty_array_is_not_close(found: object) -> None:
    near = pytest.approx([5.0] if isinstance(found, list) else 5.0)
    assert found != near and near != found


def test_what_is_close_stays_close() -> None:
    assert 5.0 == pytest.approx(5.0) == np.float64(5.0) and pytest.approx([5.0]) == [5.0]
    assert np.full(3, 5.0) == pytest.approx(5.0)
