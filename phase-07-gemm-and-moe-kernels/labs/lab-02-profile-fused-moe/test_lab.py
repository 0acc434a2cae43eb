"""Lab 07-02: the share model by hand, names of real kernels, and true profiles of vLLM 0.22.1 on an MoE model."""

import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
POCKET_MOE = HERE.parents[2] / "models" / "pocket-moe"


def olmoe(impl):
    """The shape of OLMoE-1B-7B: 16 layers, 64 experts of width 1024, 8 of them a token."""
    return impl.Model(16, 2048, 1024, 64, 8, 16, 16, 128, 50304)


def mixtral(impl):
    return impl.Model(32, 4096, 14336, 8, 2, 32, 8, 128, 32000)


def card(impl):
    """The data sheet of an H200, and 2 microseconds for a kernel that does nothing (an assumption)."""
    return impl.Device(flops=989e12, bytes_per_s=4.8e12, launch_s=2e-6)


# ---- experts touched -----------------------------------------------------------------------------------------------


def test_experts_touched(impl):
    assert impl.experts_touched(8, 2, 1) == pytest.approx(2), "one token: its own k"
    assert impl.experts_touched(64, 8, 8) == pytest.approx(42.009, abs=1e-3), "64 choices, 42 different experts"
    assert impl.experts_touched(64, 8, 64) == pytest.approx(64, abs=0.02), "and all of them soon after"
    assert impl.experts_touched(8, 2, 2) == pytest.approx(3.5), "8 times 1 - 0.75 squared"
    assert impl.experts_touched(64, 6, 3) == pytest.approx(16.36, abs=0.01)
    assert impl.experts_touched(256, 8, 2) == pytest.approx(15.75), "two tokens seldom meet among 256"
    assert impl.experts_touched(4, 4, 3) == 4 and impl.experts_touched(8, 2, 0) == 0


def test_experts_touched_is_what_a_fair_router_does(impl):
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(0)
    for experts, k, tokens in ((16, 2, 8), (64, 6, 8), (8, 2, 5)):
        found = [len(np.unique(np.argsort(rng.random((tokens, experts)), axis=1)[:, :k])) for _ in range(400)]
        assert np.mean(found) == pytest.approx(impl.experts_touched(experts, k, tokens), rel=0.03)


# ---- the operations of one layer -----------------------------------------------------------------------------------


def test_moe_ops_by_hand(impl):
    """D 4, I 3, two experts, k 1, two tokens, two bytes a number; 1.5 experts are touched."""
    model, step = impl.Model(1, 4, 3, 2, 1, 1, 1, 4, 10), impl.Step(2, 1, 7)
    router, align, experts, glue = impl.moe_ops(model, step)
    assert [op.group for op in (router, align, experts, glue)] == ["router", "align", "experts", "glue"]
    assert (router.flops, router.bytes) == (2 * 2 * 4 * 2, (4 * 2 + 2 * 4) * 2)
    assert (align.flops, align.bytes) == (0, 4 * 2 * 4)
    assert experts.flops == 2 * 2 * 3 * 4 * 3 == 144
    assert experts.bytes == (1.5 * 36 + 2 * (4 + 6) + 2 * (3 + 4)) * 2
    assert (glue.flops, glue.bytes) == (0, (2 * 9 + 2 * 4 + 2 * 4) * 2)
    assert [op.launches for op in (router, align, experts, glue)] == [2, 2, 2, 2]


def test_k_experts_a_token(impl):
    model, step = impl.Model(1, 8, 4, 16, 4, 1, 1, 8, 10, dtype_bytes=4), impl.Step(3, 2, 9)
    router, align, experts, glue = impl.moe_ops(model, step)
    touched = 16 * (1 - 0.75**6)
    assert step.num_tokens == 6 and router.flops == 2 * 6 * 8 * 16 and align.bytes == 4 * 24 * 4
    assert experts.flops == 2 * 24 * 96, "24 rows, not 6"
    assert experts.bytes == pytest.approx(4 * (touched * 96 + 24 * (8 + 8) + 24 * (4 + 8)))
    assert glue.bytes == 4 * (24 * 12 + 24 * 8 + 6 * 8)


def test_op_time_is_the_slower_ceiling_and_the_launches(impl):
    device = impl.Device(flops=100.0, bytes_per_s=10.0, launch_s=0.5)
    assert impl.op_time(impl.Op("x", 300.0, 20.0, 2), device) == 3.0 + 1.0
    assert impl.op_time(impl.Op("x", 100.0, 20.0, 0), device) == 2.0
    assert impl.op_time(impl.Op("x", 0.0, 0.0, 1), device) == 0.5, "an empty kernel is not free"


def test_predict_counts_layers_and_one_head(impl):
    model, step = olmoe(impl), impl.Step(8, 1, 512)
    seconds = impl.predict(model, step, card(impl))
    ops = impl.moe_ops(model, step) + impl.other_ops(model, step)
    assert seconds["experts"] == pytest.approx(16 * impl.op_time(ops[2], card(impl)))
    assert seconds["head"] == pytest.approx(impl.op_time(impl.head_op(model, step), card(impl))), "not 16 times"
    assert set(seconds) == {op.group for op in ops} | {"head"}


def test_shares(impl):
    seconds = {"a": 1.0, "b": 6.0, "c": 3.0}
    found = impl.shares(seconds)
    assert list(seconds.items()) == [("a", 1.0), ("b", 6.0), ("c", 3.0)], "the argument stays as it was"
    assert found == {"b": 0.6, "c": 0.3, "a": 0.1} and list(found) == ["b", "c", "a"]


# ---- what the model says -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seqs", "query", "context", "experts", "attention", "router"),
    [(8, 1, 512, 0.735, 0.071, 0.026), (64, 1, 512, 0.653, 0.226, 0.015), (1, 4096, 4096, 0.553, 0.097, 0.010)],
)
def test_the_table_of_the_page(impl, seqs, query, context, experts, attention, router):
    found = impl.shares(impl.predict(olmoe(impl), impl.Step(seqs, query, context), card(impl)))
    assert found["experts"] == pytest.approx(experts, abs=5e-4)
    assert found["attention"] == pytest.approx(attention, abs=5e-4)
    assert found["router"] == pytest.approx(router, abs=5e-4)
    assert sum(found.values()) == pytest.approx(1) and next(iter(found)) == "experts"


def test_a_batch_of_eight_reads_most_of_the_model(impl):
    """MoE saves arithmetic, not bytes: at batch 8 a step reads 42 of 64 experts, and 1 token needs 8."""
    seconds = [impl.predict(olmoe(impl), impl.Step(n, 1, 512), card(impl))["experts"] for n in (1, 8, 64)]
    assert 4 < seconds[1] / seconds[0] < 5.3, "eight times the tokens, about five times the time"
    assert seconds[2] / seconds[1] < 1.6, "eight times more: hardly anything, all experts were read already"


def test_more_and_smaller_experts_make_the_align_visible(impl):
    fine = impl.Model(16, 512, 64, 256, 8, 8, 8, 64, 50304)
    share = [impl.shares(impl.predict(m, impl.Step(8, 1, 512), card(impl)))["align"] for m in (mixtral(impl), fine)]
    assert share[0] < 0.01 < 0.08 < share[1]


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("fused_moe_kernel", "experts"),
        ("void vllm::moe::moe_align_block_size_small_batch_expert_kernel<int, 256>(...)", "align"),
        ("void vllm::moe::count_and_sort_expert_tokens_kernel<int>(...)", "align"),
        ("void vllm::moe::topkGating<8, 64, 4, 16, 32, int, __nv_bfloat16>(...)", "router"),
        ("void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>(...)", "glue"),
        ("void vllm::act_and_mul_kernel<c10::BFloat16, vllm::silu_kernel>(...)", "glue"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>(...)", "attention"),
        ("kernel_unified_attention", "attention"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(...)", "attention"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(...)", "attention"),
        ("void vllm::rms_norm_kernel<c10::BFloat16>(...)", "norm"),
        ("nvjet_tst_128x128_64x4_1x2_h_bz_TNT", "dense"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>(...)", "dense"),
        ("_C::cpu_fused_moe", "experts"),
        ("vllm::cpu_fused_moe_torch", "experts"),
        ("_C::onednn_mm", "dense"),
        ("_C::cpu_attention_with_kv_cache", "attention"),
        ("Memcpy HtoD (Pinned -> Device)", "other"),
        ("aten::argmax", "other"),
    ],
)
def test_group_of(impl, name, group):
    assert impl.group_of(name) == group


def test_measured(impl):
    rows = [
        ("fused_moe_kernel", 40.0, 2),
        ("aten::argmax", 5.0, 1),
        ("nvjet_tst", 10.0, 9),
        ("fused_moe_kernel_x", 2, 1),
    ]
    given = list(rows)
    assert impl.measured([("nvjet", 2_000_000.5, 1), ("nvjet", 0.25, 1)]) == {"dense": 2_000_000.75}
    assert impl.measured(given) == impl.measured(rows) and given == rows, "the rows are the caller's"
    assert impl.measured([]) == {}
    assert impl.measured(rows) == {"experts": 42.0, "other": 5.0, "dense": 10.0}, "times are sums already: not per call"


# ---- true profiles: vLLM 0.22.1 on models/pocket-moe, two ways through its CPU experts -----------------------------


def run(arm):
    return json.loads((CAPTURED / f"cpu-{arm}.json").read_text(encoding="utf-8"))


def calls(result):
    return {name: count for name, _, count in result["rows"]}


def busy_experts(result):
    """Experts with tokens, over all layers and steps: vLLM's loop makes two products for each."""
    return calls(result)["aten::mm"] // 2


def test_grouped_is_one_call_a_layer_and_step():
    grouped, loop = run("grouped"), run("loop")
    layer_steps = grouped["num_layers"] * grouped["num_steps"]
    assert calls(grouped)["_C::cpu_fused_moe"] == layer_steps == 192 and "aten::mm" not in calls(grouped)
    assert calls(loop)["vllm::cpu_fused_moe_torch"] == layer_steps and calls(loop)["aten::mm"] == 2654
    assert sum(calls(loop).values()) > 2.5 * sum(calls(grouped).values()), "and all that stands around each product"
    assert grouped["output_ids"] == loop["output_ids"], "two programs, one layer"


def test_your_formula_predicts_the_loop(impl):
    """A fair router would touch 7.2 of 8 experts with eight tokens; pocket-moe's touches a little fewer."""
    loop = run("loop")
    steps = [sum(loop["prompt_tokens"])] + [len(loop["prompt_tokens"])] * (loop["num_steps"] - 1)
    fair = sum(impl.experts_touched(loop["num_experts"], loop["top_k"], tokens) for tokens in steps)
    found = busy_experts(loop) / loop["num_layers"]
    assert 0.93 < found / fair < 1.0


def test_groups_of_a_real_profile(impl):
    grouped, loop = run("grouped"), run("loop")
    for result in (grouped, loop):
        found = impl.measured(result["rows"])
        assert {"experts", "attention", "dense", "other"} <= set(found)
        assert sum(found.values()) == pytest.approx(sum(row[1] for row in result["rows"]))
        assert impl.shares(found)["other"] > 0.3, "at this size most of the time is Python's and the small operations'"


def test_a_whole_model_on_an_h200(impl):
    """Three steps of OLMoE's shape in real vLLM: your shares, and the experts' milliseconds."""
    for kind in json.loads(lzma.decompress((CAPTURED / "h200-olmoe.json.xz").read_bytes()))["kinds"]:
        step = impl.Step(*kind["step"])
        predicted = impl.predict(olmoe(impl), step, card(impl))
        found = {group: us / kind["num_steps"] for group, us in impl.measured(kind["rows"]).items()}
        says, seen = impl.shares(predicted), impl.shares(found)
        assert next(iter(seen)) == next(iter(says)) == "experts"
        assert all(abs(seen.get(group, 0) - share) < 0.13 for group, share in says.items())
        assert sum(found.values()) > 1e6 * sum(predicted.values()), "nothing runs at the data sheet's ceilings"
        if step.query == 1:
            assert 1 < found["experts"] / (1e6 * predicted["experts"]) < 1.2


def test_pocket_moe_on_an_h200(impl):
    result = json.loads((CAPTURED / "h200-pocket-moe.json").read_text(encoding="utf-8"))
    layer_steps = result["num_layers"] * result["num_steps"]
    assert calls(result)["fused_moe_kernel"] == 2 * layer_steps == 384, "two products a layer and step"
    aligned = sum(count for name, _, count in result["rows"] if impl.group_of(name) == "align")
    routed = sum(count for name, _, count in result["rows"] if impl.group_of(name) == "router")
    assert aligned == routed == layer_steps
    found = impl.measured(result["rows"])
    assert set(found) == set(impl.GROUPS) - {"head"} and found["experts"] < 0.2 * sum(found.values())
    same = [a == b for a, b in zip(result["output_ids"], run("grouped")["output_ids"], strict=True)]
    assert sum(same) == 6, "bf16 against float32"


def test_your_model_predicts_an_h200(impl):
    """The experts of one layer, timed on an H200, with the ceilings of the same run."""
    captured = json.loads(lzma.decompress((HERE.parents[1] / "captured" / "h200-gemm.json.xz").read_bytes()))
    ceilings = captured["ceilings"]
    device = impl.Device(
        ceilings["cublas_bf16_4096_tflop_per_s"] * 1e12,
        ceilings["copy_gb_per_s"] * 1e9,
        ceilings["smallest_kernel_us"] * 1e-6,
    )
    qwen3 = impl.Model(48, 2048, 768, 128, 8, 32, 4, 128, 151936)
    shapes = {"mixtral-8x7b": mixtral(impl), "qwen3-30b-a3b": qwen3}
    for row in captured["moe"]:
        model, tokens = shapes[row["model"]], row["tokens"]
        touched = impl.experts_touched(model.num_experts, model.top_k, tokens)
        assert row["experts_used"] == pytest.approx(touched, rel=0.08)
        _, _, experts, glue = impl.moe_ops(model, impl.Step(tokens, 1, 1))
        predicted = 1e6 * (impl.op_time(experts, device) + impl.op_time(glue, device))
        ratio = row["us"]["grouped kernel"] / predicted
        assert 0.95 < ratio < (1.15 if tokens in (16, 64) else 2.2), (row["model"], tokens)


def test_mini_vllm_touches_the_same_experts():
    """The same prompts through the small engine: the same tokens, and the same experts busy in each layer and step."""
    np = pytest.importorskip("numpy")
    from mini_vllm import LLM, SamplingParams

    loop = run("loop")
    llm = LLM(model=POCKET_MOE, enable_prefix_caching=False)
    load = llm.llm_engine.stats.expert_load
    record, touched = load.record, []
    load.record = lambda layer, ids, *more: touched.append(len(np.unique(ids))) or record(layer, ids, *more)
    source = (HERE / "real_run.py").read_text(encoding="utf-8")
    names = {}
    exec(source[source.index("PROMPTS = (") : source.index("def parse_args")], names)
    params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
    outputs = llm.generate(list(names["PROMPTS"]), params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == loop["output_ids"]
    assert len(touched) == 192 and sum(touched) == busy_experts(loop) == 1327


# ---- a run of your own ---------------------------------------------------------------------------------------------


@pytest.mark.real_vllm
def test_live(impl, real_vllm_python, tmp_path):
    """About half a minute: profiles vLLM on models/pocket-moe in both arms."""
    found = {}
    for arm in ("grouped", "loop"):
        command = [str(real_vllm_python), str(HERE / "real_run.py"), "--model", str(POCKET_MOE), "--arm", arm]
        done = subprocess.run(
            [*command, "--out", str(tmp_path / arm)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout[-3000:]
        found[arm] = json.loads((tmp_path / arm / "result.json").read_text(encoding="utf-8"))
    assert calls(found["grouped"])["_C::cpu_fused_moe"] == 192
    assert found["grouped"]["output_ids"] == found["loop"]["output_ids"] == run("loop")["output_ids"]
    assert impl.measured(found["loop"]["rows"])["experts"] > 0


@pytest.mark.gpu
@pytest.mark.timeout(400)
def test_on_this_gpu(impl, tmp_path):
    """A minute or two: the `gpu` arm on models/pocket-moe; the counts of a profile are those of the capture."""
    pytest.importorskip("vllm", reason='needs the GPU build of vLLM: pip install -e ".[vllm]"')
    command = [os.environ.get("COURSE_VLLM_PYTHON", sys.executable), str(HERE / "real_run.py"), "--arm", "gpu"]
    command += ["--model", str(POCKET_MOE), "--out", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=380)
    assert done.returncode == 0, done.stdout[-3000:]
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert calls(result)["fused_moe_kernel"] == 384
    assert impl.measured(result["rows"])["experts"] > 0
