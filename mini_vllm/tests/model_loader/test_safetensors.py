"""The safetensors reader: every stored type, shards, and each way in which a file can be damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from mini_vllm.model_loader.random_checkpoint import to_bf16, write_safetensors
from mini_vllm.model_loader.safetensors_reader import INDEX_NAME, SINGLE_NAME, Checkpoint, CheckpointError

A = np.arange(12, dtype=np.float32).reshape(3, 4) / 4  # exact in bf16 and f16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_safetensors(tmp_path / SINGLE_NAME, {"a": A, "b": A[0]})
    return tmp_path


def read(folder: Path, name: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    with Checkpoint(folder) as checkpoint:
        dest = np.full(shape, np.nan, dtype)
        checkpoint.read_into(name, dest)
        return dest


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "stored", [A, A.astype(np.float16), A.astype(np.float64), to_bf16(A)], ids=["f32", "f16", "f64", "bf16"]
)
def test_every_stored_type_is_converted(tmp_path: Path, stored: np.ndarray, dtype: str) -> None:
    write_safetensors(tmp_path / SINGLE_NAME, {"a": stored})
    np.testing.assert_array_equal(read(tmp_path, "a", (3, 4), dtype), A)


def test_bf16_keeps_the_upper_half_of_a_float(tmp_path: Path) -> None:
    values = np.array([1.0, -2.5, 3.1415927, 1e-30, np.inf], np.float32)
    write_safetensors(tmp_path / SINGLE_NAME, {"a": to_bf16(values)})
    expected = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    np.testing.assert_array_equal(read(tmp_path, "a", (5,)), expected)


def test_the_destination_may_be_part_of_a_larger_array(folder: Path) -> None:
    whole = np.zeros((7, 4), np.float32)
    with Checkpoint(folder) as checkpoint:
        checkpoint.read_into("a", whole[2:5])
    np.testing.assert_array_equal(whole[2:5], A)
    assert not whole[:2].any() and not whole[5:].any()


def test_large_tensors_are_copied_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mini_vllm.model_loader.safetensors_reader._PIECE", 8)
    big = np.random.default_rng(0).standard_normal((33, 4), dtype=np.float32)
    write_safetensors(tmp_path / SINGLE_NAME, {"a": big})
    np.testing.assert_array_equal(read(tmp_path, "a", (33, 4)), big)


def shard(folder: Path) -> None:
    (folder / SINGLE_NAME).unlink()
    write_safetensors(folder / "one.safetensors", {"a": A})
    write_safetensors(folder / "two.safetensors", {"b": A[0]})
    weight_map = {"a": "one.safetensors", "b": "two.safetensors"}
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 64}, "weight_map": weight_map}))


def test_shards_are_found_through_the_index(folder: Path) -> None:
    shard(folder)
    np.testing.assert_array_equal(read(folder, "a", (3, 4)), A)
    np.testing.assert_array_equal(read(folder, "b", (4,)), A[0])


def test_a_shard_that_is_not_there(folder: Path) -> None:
    shard(folder)
    (folder / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"index\.json: the shard 'two\.safetensors' is not in the folder"):
        Checkpoint(folder)


def test_a_shard_outside_the_folder_is_refused(folder: Path) -> None:
    (folder / SINGLE_NAME).unlink()
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "../other.safetensors"}}))
    with pytest.raises(CheckpointError, match="is not in the folder"):
        Checkpoint(folder)


def test_an_index_that_promises_too_much(folder: Path) -> None:
    shard(folder)
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": {"c": "one.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"one\.safetensors: tensor 'c' is missing"):
        Checkpoint(folder)


def test_an_index_that_is_not_json(folder: Path) -> None:
    (folder / INDEX_NAME).write_text("{")
    with pytest.raises(CheckpointError, match=r"index\.json: not valid JSON"):
        Checkpoint(folder)
    (folder / INDEX_NAME).write_text("{}")
    with pytest.raises(CheckpointError, match=r"index\.json must have weight_map, got"):
        Checkpoint(folder)


def test_a_truncated_file(folder: Path) -> None:
    file = folder / SINGLE_NAME
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: truncated: tensor 'b' ends at byte \d+, the file has"
    ):
        Checkpoint(folder)


def test_a_truncated_header(folder: Path) -> None:
    file = folder / SINGLE_NAME
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(CheckpointError, match="truncated or not safetensors"):
        Checkpoint(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes are too few"),
        (b"<html>not a model</html>", "truncated or not safetensors"),
        (struct.pack("<Q", 4) + b"oops", "header is not JSON"),
        (struct.pack("<Q", 2) + b"[]", "header must be a JSON object"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "tensor 'a' has a damaged header entry"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / SINGLE_NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(tmp_path)


def test_sizes_must_agree_with_shapes(tmp_path: Path) -> None:
    blob = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    (tmp_path / SINGLE_NAME).write_bytes(struct.pack("<Q", len(blob)) + blob + bytes(8))
    with pytest.raises(CheckpointError, match=r"tensor 'a' of shape \(3,\) \(F32\) has 8 bytes"):
        Checkpoint(tmp_path)


def raw_file(folder: Path, entries: str, size: int) -> None:
    blob = entries.encode()
    (folder / SINGLE_NAME).write_bytes(struct.pack("<Q", len(blob)) + blob + bytes(size))


def entry(start: int, end: int) -> str:
    return json.dumps({"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]})


@pytest.mark.parametrize(
    ("ranges", "size", "words"),
    [
        ([(0, 8), (0, 8)], 8, r"invalid offset for tensor 't1': .* overlaps 't0'"),
        ([(0, 8), (0, 8), (8, 16)], 16, "invalid offset for tensor 't1': .* overlaps"),
        ([(0, 8), (4, 12)], 12, "'t1': .* overlaps 't0'"),
        ([(0, 16), (4, 8), (16, 20)], 20, "'t1': .* overlaps 't0'"),
        ([(8, 16), (0, 4)], 16, "'t0': .* leaves 4 bytes after 't1'"),
        ([(4, 8)], 8, "'t0': .* leaves 4 bytes after the header"),
        ([(0, 4)], 8, "tensors end at byte"),
        ([(0, 0), (5, 5), (0, 8)], 8, "'t1': .* overlaps 't2'"),
        ([], 3, "tensors end at byte"),
    ],
)
def test_tensors_cover_the_buffer_once(tmp_path: Path, ranges: list[tuple[int, int]], size: int, words: str) -> None:
    raw_file(tmp_path, "{" + ", ".join(f'"t{i}": {entry(*each)}' for i, each in enumerate(ranges)) + "}", size)
    with pytest.raises(CheckpointError, match=words):
        Checkpoint(tmp_path)


def test_tensors_may_lie_in_any_order_and_be_empty(tmp_path: Path) -> None:
    raw_file(tmp_path, f'{{"b": {entry(4, 8)}, "none": {entry(4, 4)}, "a": {entry(0, 4)}, "last": {entry(8, 8)}}}', 8)
    with Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.names() == {"a", "b", "none", "last"}


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (f'{{"a": {entry(0, 4)}, "a": {entry(0, 4)}}}', "'a' stands twice"),
        (f'{{"a": {entry(0, 4)[:-1]}, "shape": [4]}}}}', "'shape' stands twice"),
        (f'{{"a": {entry(0, 4)[:-1]}, "strides": [1]}}}}', "tensor 'a' has a damaged header entry"),
        (f'{{"__metadata__": {{"format": 5}}, "a": {entry(0, 4)}}}', "__metadata__ must be an object of texts"),
        (f'{{"__metadata__": [], "a": {entry(0, 4)}}}', "__metadata__ must be an object of texts"),
    ],
)
def test_a_header_says_each_thing_once_and_nothing_else(tmp_path: Path, entries: str, words: str) -> None:
    raw_file(tmp_path, entries, 4)
    with pytest.raises(CheckpointError, match=words):
        Checkpoint(tmp_path)


def test_a_tensor_that_the_index_does_not_name(folder: Path) -> None:
    shard(folder)
    index = json.loads((folder / INDEX_NAME).read_text())
    del index["weight_map"]["b"]
    index["weight_map"]["a2"] = index["weight_map"]["a"]
    (folder / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="tensor 'a2' is missing, the index says it is here"):
        Checkpoint(folder)
    index["weight_map"] = {"a": "one.safetensors"}
    write_safetensors(folder / "one.safetensors", {"a": A, "c": A})
    (folder / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(
        CheckpointError, match=r"tensor 'c' is here, and model\.safetensors\.index\.json does not say so"
    ):
        Checkpoint(folder)


def test_wrong_shape_missing_tensor_unknown_type(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tensor 'a' has shape \(3, 4\), expected \(4, 3\)"):
        read(folder, "a", (4, 3))
    with pytest.raises(CheckpointError, match=r"tensor 'c' is missing, expected shape \(2,\)"):
        read(folder, "c", (2,))
    blob = json.dumps({"a": {"dtype": "I8", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (folder / SINGLE_NAME).write_bytes(struct.pack("<Q", len(blob)) + blob + bytes(2))
    with pytest.raises(CheckpointError, match="tensor 'a' has dtype I8; allowed: F64, F32, F16, BF16"):
        read(folder, "a", (2,))


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors or model\.safetensors\.index\.json in"):
        Checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(FileNotFoundError, match="only pickled weights"):
        Checkpoint(tmp_path)


@pytest.mark.needs_torch
def test_the_library_reads_what_we_write(folder: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    loaded = library.load_file(folder / SINGLE_NAME)
    np.testing.assert_array_equal(loaded["a"], A)


def test_two_sets_of_weights_beside_each_other(folder: Path) -> None:
    """transformers reads the one file, vLLM the shards: nobody knows which was meant."""
    shard = {"a": "one.safetensors"}
    write_safetensors(folder / "one.safetensors", {"a": A + 1})
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": shard}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors and model\.safetensors\.index\.json name two sets"):
        Checkpoint(folder)
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": dict.fromkeys("ab", SINGLE_NAME)}))
    np.testing.assert_array_equal(read(folder, "a", (3, 4)), A)


def test_weights_under_other_names_are_named(folder: Path) -> None:
    (folder / SINGLE_NAME).rename(folder / "consolidated.safetensors")
    with pytest.raises(FileNotFoundError, match=r"it has \['consolidated\.safetensors'\]; save it once with"):
        Checkpoint(folder)
