"""The benchmark of offloading runs: two lengths, one repeat, no word about speed; and its page has all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import kv_offload

pytestmark = pytest.mark.skipif(
    not (kv_offload.ROOT / "models" / "pocket" / "model.safetensors").is_file(), reason="models/pocket is not here"
)


@pytest.mark.slow
def test_all_arms_answer_alike_and_find_what_they_should(tmp_path: Path) -> None:
    result = kv_offload.break_even((16, 48), 1, str(tmp_path))  # it compares answers and hits itself
    assert [row["tokens"] for row in result["loaded"]] == [16, 48] and set(result["copies"]) == {"GPU->CPU", "CPU->GPU"}
    hits = [{"order": "in a circle", "host": 0, "policy": "none", "hits": 0.5, "ms": 1.0}]
    text = kv_offload.page({"machine": {}, **result, "hits": hits}, 1, 1)
    assert "| in a circle | 0 | none | 0.50 | 1.00 |" in text and text.count("\n| 48 |") == 2


def test_a_circle_that_does_not_fit_the_pool_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_offload, "CONVERSATIONS", 5)
    rows = kv_offload.hit_rates(2, (0,))
    assert (rows[0]["order"], rows[0]["hits"]) == ("in a circle", 0.0) and rows[1]["hits"] > 0
