"""Lab 06-02: your arithmetic on true runs of vLLM 0.22.1, and, where it is installed, on a run of your own."""

import importlib.util
import json
import lzma
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
POCKET = HERE.parents[2] / "models" / "pocket"
LAYER = [(256, 256), (128, 256), (128, 256), (256, 256), (512, 256), (512, 256), (256, 512)]
QWEN_05B = [(896, 896), (128, 896), (128, 896), (896, 896), (4864, 896), (4864, 896), (896, 4864)] * 24
WORKING = ("fp32", "fp32-w8a8", "bf16", "bf16-w4a16", "bf16-w4a16-g32", "bf16-kv-fp8")


def run(arm):
    return json.loads(lzma.decompress((CAPTURED / f"cpu-{arm}.json.xz").read_bytes()))


def log(arm):
    return (CAPTURED / f"cpu-{arm}.log").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """`converted(scheme)`: the folder of a quantized copy of pocket, made once by the lab's script."""

    @cache
    def convert(scheme):
        spec = importlib.util.spec_from_file_location("make_checkpoint_of_lab_06_02", HERE / "make_checkpoint.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        folder = tmp_path_factory.mktemp(scheme)
        module.convert(POCKET, folder, scheme)
        return folder

    return convert


# ---- bytes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (("fp32",), 4 * 512 * 1024), (("bf16",), 2 * 512 * 1024), (("fp8", 1024, 4), 512 * 1024 + 4 * 512),
        (("int8",), 512 * 1024 + 4 * 512), (("int4", 128, 2), 256 * 1024 + 2 * 512 * 8),
        (("int4", 32, 2), 256 * 1024 + 2 * 512 * 32),
    ],
)  # fmt: skip
def test_bytes_of_a_projection(impl, scheme, expected):
    assert impl.linear_bytes(512, 1024, impl.Scheme(*scheme)) == expected


def test_scales_and_the_rest_have_their_own_bytes(impl):
    assert impl.linear_bytes(4, 8, impl.Scheme("int8", 0, 2)) == 32 + 4 * 2, "a scale a row, of two bytes"
    assert impl.linear_bytes(4, 8, impl.Scheme("int4", 4, 1)) == 16 + 4 * 2
    assert impl.model_bytes([(4, 8), (2, 8)], 10, impl.Scheme("bf16"), rest_bytes=4) == 2 * 48 + 40
    assert impl.model_bytes([(4, 8)], 10, impl.Scheme("fp32")) == 4 * 32 + 20, "two bytes, where nothing is said"
    shapes = [(4, 8), (2, 8)]
    impl.model_bytes(shapes, 10, impl.Scheme("bf16"))
    assert shapes == [(4, 8), (2, 8)], "the list is the caller's"
    assert impl.model_bytes([], 3, impl.Scheme("int4", 128, 2)) == 6
    assert impl.byte_ceiling(10, 3) == 10 / 3


def test_groups_must_fit(impl):
    with pytest.raises(ValueError, match="group must divide the 96 inputs"):
        impl.linear_bytes(8, 96, impl.Scheme("int4", 128, 2))


@pytest.mark.parametrize(("scheme", "stored"), [("w8a8", ("int8",)), ("w4a16", ("int4", 128, 2))])
def test_size_of_a_checkpoint_to_the_byte(impl, converted, scheme, stored):
    """pocket: 8 layers, and in float16 an embedding of 4,096 x 256 and 17 norms of 256."""
    data = (converted(scheme) / "model.safetensors").read_bytes()
    tensors = len(data) - 8 - int.from_bytes(data[:8], "little")
    shape_notes = 0 if scheme == "w8a8" else 16 * 56
    expected = impl.model_bytes(LAYER * 8, 4096 * 256 + 17 * 256, impl.Scheme(*stored))
    assert tensors == expected + shape_notes


def test_what_the_real_engine_keeps(impl):
    """Bytes of q, k and v after loading, from the shapes and types that vLLM reported."""
    size = {"int32": 4, "bfloat16": 2}
    for arm, group in (("bf16-w4a16", 128), ("bf16-w4a16-g32", 32)):
        rows = [row for row in run(arm)["stored"] if "qkv_proj" in row["name"] and len(row["shape"]) == 2]
        stored = sum(row["shape"][0] * row["shape"][1] * size[row["dtype"]] for row in rows)
        assert stored == impl.linear_bytes(512, 256, impl.Scheme("int4", group, 2))


def test_qwen_by_hand(impl):
    """Qwen2.5-0.5B: 357.8 M weights in projections, 136.1 M in the tied embedding (and little else)."""
    assert sum(rows * columns for rows, columns in QWEN_05B) == 357_826_560
    rest = 136_134_656 + 49 * 896 + 24 * 1152
    before = impl.model_bytes(QWEN_05B, rest, impl.Scheme("bf16"))
    fp8 = impl.model_bytes(QWEN_05B, rest, impl.Scheme("fp8"))
    awq = impl.model_bytes(QWEN_05B, rest, impl.Scheme("int4", 128, 2))
    assert before == pytest.approx(0.988e9, rel=0.001)
    assert impl.byte_ceiling(before, fp8) == pytest.approx(1.565, abs=0.005)
    assert impl.byte_ceiling(before, awq) == pytest.approx(2.16, abs=0.01)
    assert impl.blocks_gained(before - fp8, 12_288) == pytest.approx(1815, abs=10)
    assert impl.blocks_gained(before - awq, 12_288) == pytest.approx(2700, abs=20)


def test_blocks_are_whole(impl):
    assert impl.blocks_gained(3199, 100, 16) == 1
    assert impl.blocks_gained(3200, 100, 16) == 2
    assert impl.blocks_gained(3200, 100) == 2, "blocks of 16 tokens, where nothing is said"
    assert impl.blocks_gained(3200, 100, 32) == 1 and impl.blocks_gained(10**20, 1, 3) == 33_333_333_333_333_333_333


def test_step_seconds(impl):
    assert impl.step_seconds(3_000_000, 1_000_000, 4e9) == pytest.approx(1e-3)
    assert impl.step_seconds(0, 0, 4e9, fixed=2e-3) == pytest.approx(2e-3)
    assert impl.step_seconds(10, 0, 5.0) == 2.0


def test_a_small_model_on_a_large_gpu_is_not_about_bytes(impl):
    """Qwen3-0.6B's shape on an H200, batch 1: 2.14 ms a step measured, 0.25 ms of weights to read at 4.8 TB/s."""
    rows = [json.loads(line) for line in (CAPTURED / "h200-decode.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = {row["batch"]: row["ms_per_step"] / 1e3 for row in rows}[1]
    weights, bandwidth = 2 * 596_049_920, 4.8e12
    floor = impl.step_seconds(weights, 0, bandwidth)
    assert 0.24e-3 < floor < 0.26e-3 and measured > 8 * floor
    halved = impl.step_seconds(weights // 2, 0, bandwidth, fixed=measured - floor)
    assert 1.05 < measured / halved < 1.07, "half the bytes would be worth 6 percent"


# ---- what the engine chose -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arm", "expected"),
    [
        ("fp32", None),
        ("fp32-w8a8", ("CPUInt8ScaledMMLinearKernel", "CompressedTensorsW8A8Int8")),
        ("bf16-w4a16", ("CPUWNA16LinearKernel", "CompressedTensorsWNA16")),
        ("bf16-online-fp8", ("PerTensorTorchFP8ScaledMMLinearKernel", "Fp8OnlineLinearMethod")),
        ("bf16-kv-fp8", None),
    ],
)
def test_kernels(impl, arm, expected):
    assert impl.kernel_of(log(arm)) == expected


def test_other_lines_begin_alike(impl):
    text = (
        "INFO [selector.py:130] Using HND KV cache layout for CPU_ATTN backend.\nUsing fp8 data type to store kv cache"
    )
    assert impl.kernel_of(text) is None and impl.kv_tokens_of(text) is None
    two = "Using MarlinLinearKernel for GPTQ\nSelected OtherKernel for Fp8LinearMethod"
    assert impl.kernel_of(two) == ("MarlinLinearKernel", "GPTQ"), "the first line that names a kernel"
    for text, tokens in (("GPU KV cache size: 96 tokens", 96), ("GPU KV cache size: 1,234,567 tokens", 1_234_567)):
        assert impl.kv_tokens_of(text) == tokens


def test_capacity_follows_the_type_of_the_cache_only(impl):
    tokens = {arm: impl.kv_tokens_of(log(arm)) for arm in (*WORKING, "bf16-kv-int8", "bf16-online-fp8")}
    assert tokens["fp32"] == tokens["fp32-w8a8"] == 131_072, "the cache was given 1 GiB: smaller weights buy nothing"
    assert tokens["bf16"] == tokens["bf16-w4a16"] == 2 * tokens["fp32"]
    assert tokens["bf16-kv-fp8"] == 2 * tokens["bf16"]
    assert tokens["bf16-kv-fp8"] / tokens["bf16-kv-int8"] == pytest.approx(1.0625, abs=1e-4)
    assert tokens["bf16-online-fp8"] is None, "that arm failed before it came to the cache"


@pytest.mark.provided
def test_selected_is_not_the_same_as_works():
    assert "dynamic_scaled_fp8_quant" in run("bf16-online-fp8")["error"]
    assert "invalid for input of size" in run("bf16-kv-int8")["error"]
    assert not any("error" in run(arm) for arm in WORKING)


# ---- quality -------------------------------------------------------------------------------------------------------


def test_perplexity_by_hand(impl):
    texts = [{"tokens": 1, "logprob": -1.0}, {"tokens": 3, "logprob": -1.0}]
    kept = [row.copy() for row in texts]
    impl.perplexity(texts)
    assert texts == kept, "the list is the caller's"
    assert impl.perplexity(texts) == pytest.approx(2.718281828**0.5), "per token, not per text"


def test_worst_text_by_hand(impl):
    before = [{"tokens": 2, "logprob": -2.0}, {"tokens": 10, "logprob": -2.0}, {"tokens": 4, "logprob": -4.0}]
    after = [{"tokens": 2, "logprob": -1.0}, {"tokens": 10, "logprob": -4.0}, {"tokens": 4, "logprob": -5.0}]
    assert impl.worst_text(before, after) == (2, pytest.approx(0.25))
    kept = [row.copy() for row in before]
    impl.worst_text(before, after)
    assert before == kept, "the lists are the caller's"
    assert impl.worst_text(before[:2], before[:2]) == (0, 0.0), "the first of equals"
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        impl.worst_text(before, after[:2])


def test_looks_fine(impl):
    """The same greedy answers in every arm, and on its own answers the coarsest scheme is even better."""
    answers = [[row["token_ids"] for row in run(arm)["answers"]] for arm in WORKING]
    assert all(each == answers[0] for each in answers)
    assert impl.perplexity(run("bf16-w4a16")["own_answers"]) < impl.perplexity(run("fp32")["own_answers"])


@pytest.mark.provided
@pytest.mark.parametrize(("scheme", "arm"), [("w8a8", "fp32-w8a8"), ("w4a16", "bf16-w4a16")])
def test_mini_vllm_answers_what_vllm_answers(converted, scheme, arm):
    """The small engine loads the same file, codes as they are, and gives the same tokens to two of the questions."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM(model=str(converted(scheme)), num_blocks=64, max_model_len=256)
    rows = run(arm)["answers"][:2]
    outputs = llm.generate(
        [{"prompt_token_ids": row["prompt"]} for row in rows], SamplingParams(temperature=0.0, max_tokens=16)
    )
    assert [output.outputs[0].token_ids for output in outputs] == [row["token_ids"][:16] for row in rows]


def test_is_not_quite_fine(impl):
    """Held-out text orders the arms as the bits do."""
    ppl = {arm: impl.perplexity(run(arm)["held_out"]) for arm in WORKING}
    assert abs(ppl["bf16"] / ppl["fp32"] - 1) < 2e-4
    assert ppl["fp32"] < ppl["fp32-w8a8"] < ppl["bf16-kv-fp8"] < ppl["bf16-w4a16-g32"] < ppl["bf16-w4a16"]
    assert 1.003 < ppl["bf16-w4a16"] / ppl["fp32"] < 1.006


def test_the_mean_hides_a_text(impl):
    base = run("fp32")["held_out"]
    index, fall = impl.worst_text(base, run("bf16-w4a16")["held_out"])
    assert index == 11 and fall == pytest.approx(0.081, abs=0.001), "15 times the mean of the texts"
    assert {impl.worst_text(base, run(arm)["held_out"])[0] for arm in ("fp32-w8a8", "bf16-w4a16-g32")} == {11}


# ---- a run of your own ---------------------------------------------------------------------------------------------


@pytest.mark.real_vllm
def test_live(impl, real_vllm_python, tmp_path):
    """About half a minute: makes a W8A8 checkpoint of pocket and lets vLLM load and score it."""
    make = [sys.executable, str(HERE / "make_checkpoint.py"), "--model", str(POCKET), "--out", str(tmp_path / "w8a8")]
    subprocess.run([*make, "--scheme", "w8a8"], check=True, timeout=120, cwd=HERE.parents[2])
    command = [str(real_vllm_python), str(HERE / "real_run.py"), "--model", str(tmp_path / "w8a8")]
    command += ["--out", str(tmp_path), "--arm", "fp32-w8a8"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-3000:]
    assert impl.kernel_of(done.stdout) == ("CPUInt8ScaledMMLinearKernel", "CompressedTensorsW8A8Int8")
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert impl.perplexity(result["held_out"]) == pytest.approx(impl.perplexity(run("fp32-w8a8")["held_out"]), rel=1e-3)
