"""What the command line shows of attention backends and of CUDA graphs."""

from __future__ import annotations

import re

import pytest

from mini_vllm.entrypoints.cli.common import parse_engine_args, parse_sizes
from mini_vllm.tests.entrypoints.cli.test_cli import checkpoint, run  # noqa: F401  # `checkpoint` is a fixture

SIZES = ("--input-len", "8", "--output-len", "4", "--num-prompts", "3")


def flat(text: str) -> str:
    return re.sub(r"[\s│]+", " ", text)


def test_bench_shows_what_the_graphs_did(checkpoint: str) -> None:  # noqa: F811
    """One step of 24 tokens, padded to 24; three decodes of three requests, padded to four."""
    more = ("--cudagraph-mode", "FULL_AND_PIECEWISE", "--cudagraph-capture-sizes", "1,2,4,24", "--cudagraph-metrics")
    out = run("bench", "throughput", "-m", checkpoint, *SIZES, *more).stdout
    assert "| 3               | 4             | 1            | FULL         | 3     |" in out
    text = flat(out)
    assert "FULL 4 3 9 3 1" in text and "PIECEWISE 24 1 24 0 7" in text  # 2 layers: 3 pieces, 4 launches between
    assert "cudagraph mode FULL_AND_PIECEWISE" in text and "capture sizes 4, up to 24" in text
    assert "PIECEWISE 4, FULL 4; 16 graphs" in text and "3 tokens, 9.1% of the real ones" in text
    assert "10; kernel by kernel 88 (8.8 times)" in text and "0 of 4" in text


def test_a_mode_that_was_stepped_down_is_shown_so(checkpoint: str) -> None:  # noqa: F811
    args = ("--cudagraph-mode", "full", "--attention-backend", "split_kv", "-E", "cudagraph_capture_sizes=2,4")
    text = flat(
        run("bench", "latency", "-m", checkpoint, *SIZES[:4], "--num-iters", "1", "--batch-size", "1", *args).stdout
    )
    assert "FULL_AND_PIECEWISE (asked for FULL)" in text and "split_kv (support: UNIFORM_BATCH)" in text
    assert "NONE (no graph) – 1 8 0 22" in text  # the prompt of 8 tokens is above the largest size


def test_without_the_option_nothing_is_shown(checkpoint: str) -> None:  # noqa: F811
    assert "graph" not in run("bench", "throughput", "-m", checkpoint, *SIZES).stdout


def test_info_explains_the_backend(checkpoint: str) -> None:  # noqa: F811
    assert "Using paged_gather" not in run("info", checkpoint).stdout
    text = run("info", checkpoint, "--explain").stdout
    assert "Using paged_gather attention backend out of potential backends: ['paged_gather'," in text
    assert "split_kv       valid, lower priority" in text
    assert "Using split_kv backend, as asked for." in run("info", checkpoint, "--attention-backend", "split_kv").stdout


def test_generate_takes_a_backend(checkpoint: str) -> None:  # noqa: F811
    texts = {
        run("generate", "-m", checkpoint, "-p", "hello", "-n", "6", "-t", "0", "--attention-backend", name).stdout
        for name in ("dense", "paged_gather", "paged_online", "split_kv")
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("bench", "throughput", "--cudagraph-mode", "some"), "cudagraph_mode must be one of NONE"),
        (("bench", "throughput", "--cudagraph-capture-sizes", "1;2"), "sizes must be whole numbers with commas"),
        (("generate", "-p", "x", "--attention-backend", "flash"), "attention_backend must be one of dense"),
        (("info", "--attention-backend", "flash"), "attention_backend must be one of dense"),
    ],
)
def test_wrong_options_are_one_line(args: tuple[str, ...], words: str, checkpoint: str) -> None:  # noqa: F811
    where = (checkpoint,) if args[0] == "info" else ("-m", checkpoint)
    assert words in flat(run(*args, *where, code=2).stderr)


def test_lists_on_the_command_line() -> None:
    assert parse_sizes("1, 2,4") == [1, 2, 4] and parse_sizes(None) is None
    assert parse_engine_args(["cudagraph_capture_sizes=1,2", "model=a,b"]) == {
        "cudagraph_capture_sizes": [1, 2],
        "model": "a,b",
    }
