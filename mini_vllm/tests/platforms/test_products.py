"""Products of few tokens: the same numbers whichever way a BLAS likes them."""

from __future__ import annotations

import numpy as np
import pytest

from mini_vllm.platforms.cpu import products


@pytest.mark.parametrize("unpacked", [True, False])
@pytest.mark.parametrize("tokens", [1, 2, 5, 7, 8, 33])
def test_a_product_is_a_product(monkeypatch: pytest.MonkeyPatch, tokens: int, unpacked: bool) -> None:
    monkeypatch.setattr(products, "multiplies_small_unpacked", lambda: unpacked)
    monkeypatch.setattr(products, "one_core", lambda: True)
    rng = np.random.default_rng(0)
    weight, x = rng.standard_normal((48, 20)), rng.standard_normal((20, tokens))
    for columns in (x, np.ascontiguousarray(x.T).T):
        out = np.full((48, tokens), np.nan)
        products.project(weight, columns, out)
        np.testing.assert_allclose(out, weight @ x, rtol=1e-12, atol=1e-12)


def test_tokens_one_by_one_are_bitwise_those_of_a_step_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a draft's row has the logits that it would have had in a step of its own."""
    monkeypatch.setattr(products, "multiplies_small_unpacked", lambda: False)
    monkeypatch.setattr(products, "one_core", lambda: True)
    rng = np.random.default_rng(1)
    weight, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((512, 256), (256, 5)))
    together = np.empty((512, 5), np.float32)
    products.project(weight, x, together)
    for token in range(5):
        alone = np.empty((512, 1), np.float32)
        products.project(weight, x[:, token : token + 1], alone)
        assert (alone[:, 0] == together[:, token]).all()
