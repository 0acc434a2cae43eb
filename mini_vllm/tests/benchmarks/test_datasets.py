"""What benchmarks send: lengths, shared prefixes, files, and what is refused."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.benchmarks.datasets.datasets import DATASET_NAMES, SampleRequest, add_dataset_parser, get_samples
from mini_vllm.benchmarks.datasets.utils import is_valid_sequence, parse_range_ratio, resolve_range_ratios
from mini_vllm.tests.helpers import GOLDEN, POCKET
from mini_vllm.tokenizers.byte import ByteTokenizer
from mini_vllm.tokenizers.registry import load_tokenizer

TOKENIZER = load_tokenizer(POCKET)


def samples(*options: str, tokenizer: Any = TOKENIZER) -> list[SampleRequest]:
    parser = argparse.ArgumentParser()
    add_dataset_parser(parser, num_prompts=8)
    args = parser.parse_args(options)
    args.request_id_prefix = "b-"
    return get_samples(args, tokenizer)


@pytest.mark.parametrize("name", ["random", "random-plain", "prefix_repetition"])
def test_a_seed_gives_the_prompts_that_vllm_makes_of_it(name: str) -> None:
    recorded = json.loads((GOLDEN / "bench.json").read_text(encoding="utf-8"))["datasets"][name]
    tokenizer = copy.copy(TOKENIZER)
    tokenizer.all_special_ids = [0, 1, 2]  # those that transformers has names for; ours lists all seven of the file
    found = samples(*recorded["options"].split(), tokenizer=tokenizer)
    assert [[r.prompt, r.prompt_len, r.expected_output_len] for r in found] == recorded["requests"]


@pytest.mark.parametrize("name", [name for name in DATASET_NAMES if name not in ("sharegpt", "custom")])
def test_the_same_seed_gives_the_same_requests(name: str) -> None:
    options = ("--dataset-name", name, "--prefix-repetition-num-prefixes", "2")
    first, again, other = samples(*options), samples(*options), samples(*options, "--seed", "1")
    assert first == again != other
    assert len(first) == 8 and [r.request_id for r in first] == [f"b-{i}" for i in range(8)]
    special = name in ("conversations", "json")  # as upstream, a random prompt counts without special tokens
    lengths = [len(TOKENIZER.encode(r.prompt, add_special_tokens=special)) for r in first]
    assert all(abs(r.prompt_len - length) <= 2 for r, length in zip(first, lengths, strict=True))


def test_lengths_of_random_lie_in_their_ranges() -> None:
    ratio = json.dumps({"input": 0.5, "output": 0.25})
    found = samples("--random-input-len", "40", "--random-output-len", "16", "--random-range-ratio", ratio)
    assert all(19 <= r.prompt_len <= 61 and 12 <= r.expected_output_len <= 20 for r in found)
    assert len({r.prompt_len for r in found}) > 3
    bos = len(TOKENIZER.encode(""))
    assert all(abs(r.prompt_len - 40 + bos) <= 2 for r in samples("--random-input-len", "40"))


def test_random_prompts_share_only_their_prefix() -> None:
    found = [TOKENIZER.encode(r.prompt) for r in samples("--random-prefix-len", "16", "--random-input-len", "16")]
    heads = {tuple(tokens[:15]) for tokens in found}
    assert len(heads) == 1 and len({tuple(tokens[16:20]) for tokens in found}) == len(found)


def test_prefixes_are_repeated() -> None:
    sizes = ("--prefix-repetition-prefix-len", "24", "--prefix-repetition-suffix-len", "8")
    found = samples("--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "2", *sizes)
    heads = [tuple(TOKENIZER.encode(r.prompt)[:20]) for r in found]
    assert sorted(heads.count(head) for head in set(heads)) == [4, 4]
    with pytest.raises(ValueError, match=r"num_requests \(8\) must be greater than or equal to num_prefixes \(9\)"):
        samples("--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "9")


def test_a_later_turn_repeats_the_turns_before_it() -> None:
    found = samples("--dataset-name", "conversations", "--conversations-turns", "2")
    first, second = found[:4], found[4:]
    assert all(late.prompt.startswith(early.prompt) for early, late in zip(first, second, strict=True))
    assert len({r.expected_output_len for r in found}) > 2


def test_a_request_brings_its_schema() -> None:
    found = samples("--dataset-name", "json", "--json-output-len", "33")
    schemas = [r.extra_body["structured_outputs"]["json"] for r in found if r.extra_body]
    assert len(schemas) == 8 and all(2 <= len(s["properties"]) <= 4 for s in schemas)
    assert all(name in r.prompt for r, s in zip(found, schemas, strict=True) for name in s["required"])
    assert {r.expected_output_len for r in found} == {33}


def test_files_are_read_and_filled_up(tmp_path: Path) -> None:
    turns = [{"value": "What is a block of the cache?"}, {"value": "Sixteen tokens of keys and values in a row."}]
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}, {}]), encoding="utf-8")
    found = samples("--dataset-name", "sharegpt", "--dataset-path", str(path))
    assert len(found) == 8 and len({r.prompt for r in found}) == 1 and len({r.request_id for r in found}) == 8
    assert found[0].expected_output_len == len(TOKENIZER.encode(turns[1]["value"]))
    assert len(samples("--dataset-name", "sharegpt", "--dataset-path", str(path), "--no-oversample")) == 1
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b", "output_tokens": "4"}\n', encoding="utf-8")
    options = ("--dataset-name", "custom", "--dataset-path", str(rows), "--disable-shuffle", "--num-prompts", "0")
    assert [r.expected_output_len for r in samples(*options)] == [256, 256]
    assert [r.expected_output_len for r in samples(*options, "--custom-output-len", "-1")] == [3, 4]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1: not valid JSON"),
        ('{"a": 1}', "line 1: JSONL file must contain a 'prompt' column"),
        ('{"prompt": "a"}', "must contain an 'output_tokens' field"),
        ('{"prompt": "a", "output_tokens": "x"}', "Invalid value for 'output_tokens' in custom dataset: 'x'"),
        ("", "no request that can be used"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        samples("--dataset-name", "custom", "--dataset-path", str(path), "--custom-output-len", "-1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dataset-name", "sharegpt"], "dataset_path must be provided"),
        (["--dataset-name", "custom", "--dataset-path", "x.txt"], "Only JSONL format is supported"),
        (["--dataset-path", "x.json"], "Cannot use 'random' dataset with --dataset-path"),
        (["--num-prompts", "0"], "num_prompts must be at least 1"),
        (["--random-input-len", "0"], "random_input_len is too small"),
        (["--random-range-ratio", "1.0"], r"range_ratio must be in \[0, 1\)|too small"),
        (["--random-range-ratio", "wide"], "range_ratio must be a number or a JSON object, got 'wide'"),
        (["--random-range-ratio", '{"input": 0}'], "must contain 'input' and 'output' keys"),
        (["--dataset-name", "conversations", "--conversations-turns", "0"], "must be at least 1, got 0"),
    ],
)
def test_what_is_refused(options: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        samples(*options)


def test_small_helpers() -> None:
    assert parse_range_ratio("0.5") == 0.5 and parse_range_ratio(0.25) == 0.25
    assert resolve_range_ratios(0.5) == (0.5, 0.5)
    assert is_valid_sequence(4, 4) and not is_valid_sequence(3, 4) and not is_valid_sequence(4, 3)
    assert is_valid_sequence(4, 1, skip_min_output_len_check=True) and not is_valid_sequence(1025, 4)
    batches = samples("--random-batch-size", "3", tokenizer=ByteTokenizer())
    assert [len(r.prompt) for r in batches] == [3, 3, 2]
