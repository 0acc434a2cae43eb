"""The processes that draw pocket-vl's batches: the same batches as one process makes, and none left behind."""

from __future__ import annotations

import itertools
import multiprocessing
from pathlib import Path

import pytest

from models.training.pocket_vl.rows import batches

FOLDER = Path(__file__).parent / "pocket-vl"


@pytest.mark.slow
def test_workers_make_the_batches_of_one_process() -> None:
    """Two workers take turns; closing the stream ends them."""
    alone = list(itertools.islice(batches(FOLDER, 1, first=5, workers=0, rows=40), 5))
    before = set(multiprocessing.active_children())
    stream = batches(FOLDER, 1, first=5, workers=2, rows=40)
    shared = list(itertools.islice(stream, 5))
    workers = set(multiprocessing.active_children()) - before
    stream.close()
    for one, other in zip(alone, shared, strict=True):
        for name in ("ids", "classes", "pixels", "concepts"):
            assert (getattr(one, name) == getattr(other, name)).all()
    assert len(workers) == 2
    for worker in workers:
        worker.join(timeout=60)
        assert worker.exitcode is not None


@pytest.mark.slow
def test_a_worker_that_fails_ends_the_stream(tmp_path: Path) -> None:
    """A folder without a tokenizer: its error is shown, and the training does not wait for ever."""
    with pytest.raises(RuntimeError, match="a worker that makes batches has ended"):
        next(batches(tmp_path, 1, first=0, workers=1, rows=40))
