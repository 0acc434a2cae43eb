"""Lab 01-02: your reader on true captures of vLLM 0.22.1, and, where it is installed, on a run of your own."""

import json
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
POCKET = HERE.parents[2] / "models" / "pocket"
LINE = (
    "Iteration({}): {} context requests, {} context tokens, {} generation requests, {} generation tokens, "
    "iteration elapsed time: {} ms"
)


def text(name):
    return (CAPTURED / name).read_text(encoding="utf-8")


def facts(name):
    return json.loads(text(name))


def requests_of(records):
    """Split a log of one-request runs at its context steps; empty iterations are left out."""
    groups = []
    for record in records:
        if record.context_requests:
            groups.append([])
        if record.context_requests or record.generation_requests:
            groups[-1].append(record)
    return groups


# ---- your functions on lines made up for the purpose ---------------------------------------------------------------


def test_one_line(impl):
    (record,) = impl.parse_iterations(LINE.format(12, 2, 46, 3, 5, "1.25"))
    assert record == impl.IterationRecord(12, 2, 46, 3, 5, 1.25)
    assert [type(x) for x in record] == [int, int, int, int, int, float], "counts are whole numbers, the time is not"


def test_prefix_and_other_lines_are_no_matter(impl):
    stamp = "(EngineCore pid=7) INFO 11-20 18:55:27 [core.py:407] "
    log = f"noise\n{stamp}{LINE.format(0, 1, 6, 0, 0, '0.05')}\nIteration(x)\n"
    log += LINE.format(1, 0, 0, 1, 1, "10.00") + "\n"
    assert [r.index for r in impl.parse_iterations(log)] == [0, 1]
    assert impl.parse_iterations("EngineCore waiting for work.\n") == []
    cut = LINE.format(3, 0, 0, 1, 1, "10.00")[:60]
    assert impl.parse_iterations(f"{stamp}{cut}...\n{LINE.format(7, 1, 2, 0, 0, '3')}") == [
        impl.IterationRecord(7, 1, 2, 0, 0, 3.0)
    ], "a line that was cut off tells nothing, and takes nothing from the line after it"
    log = "\n".join(LINE.format(i, 0, 0, 1, 1, "1.0") for i in (5, 0, 3))
    assert [r.index for r in impl.parse_iterations(log)] == [5, 0, 3], "the order of the log: two engines may write one"


def test_summary_kinds(impl):
    rows = [
        (0, 1, 6, 0, 0, 1.0),
        (1, 0, 0, 2, 2, 1.0),
        (2, 1, 4, 2, 2, 1.0),
        (3, 0, 0, 0, 0, 0.0),
        (4, 0, 0, 1, 1, 1.0),
    ]
    summary = impl.summarize(impl.IterationRecord(*row) for row in rows)
    assert summary == impl.Summary(
        prefill_steps=1, decode_steps=2, mixed_steps=1, empty_steps=1, context_tokens=10, generation_tokens=5
    )
    assert impl.summarize([]) == impl.Summary(0, 0, 0, 0, 0, 0)


def test_startup_of_an_empty_log(impl):
    assert impl.parse_startup("nothing here\n") == impl.Startup(None, None, None, None, None)


STARTUP = """\
(EngineCore pid=1) INFO 01-02 [core.py:113] Initializing a V1 LLM engine (v9.8.7rc1) with config: model='m', seed=0
INFO 01-02 [scheduler.py:240] Chunked prefill is enabled with max_num_batched_tokens=77.
INFO 01-02 [vllm.py:978] Asynchronous scheduling is {}.
(EngineCore pid=1) INFO 01-02 [kv_cache_utils.py:1733] GPU KV cache size: {} tokens
(EngineCore pid=1) INFO 01-02 [kv_cache_utils.py:1735] Maximum concurrency for {} tokens per request: {}x
"""


def test_startup_of_a_made_up_log(impl):
    log = STARTUP.format("enabled", "1,234,567", "2,048", "602.82")
    assert impl.parse_startup(log) == impl.Startup("9.8.7rc1", True, 77, 1_234_567, 602.82)
    log = STARTUP.format("disabled", "640", "64", "10.00")
    assert impl.parse_startup(log) == impl.Startup("9.8.7rc1", False, 77, 640, 10.0)
    got = impl.parse_startup(log.splitlines()[3])
    assert got == impl.Startup(None, None, None, 640, None), "one line tells one fact, and the others stay None"
    kinds = [type(fact) for fact in impl.parse_startup(log)]
    assert kinds == [str, bool, int, int, float], "facts, not pieces of text"


def test_concurrency_counts_whole_blocks(impl):
    assert impl.max_concurrency(100, 16, 32) == 50.0
    assert impl.max_concurrency(100, 16, 33) == pytest.approx(100 / 3), "33 tokens occupy 3 blocks, not 2.0625"
    assert impl.max_concurrency(7, 16, 5) == 7.0, "the smallest request still takes a whole block"
    assert impl.max_concurrency(100, 32, 33) == 50.0, "blocks of 32: 33 tokens occupy 2"
    assert impl.max_concurrency(5, 1, 10) == 0.5, "the figure is a ratio, and below 1 where not even one fits"


# ---- the captures from a CPU ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cpu-default-one", "cpu-sync-one", "cpu-inproc-one"])
def test_sixteen_tokens_are_one_prefill_and_fifteen_decodes(impl, name):
    run = facts(f"{name}.json")
    summary = impl.summarize(impl.parse_iterations(text(f"{name}.log")))
    (request,) = run["requests"]
    assert request["output_tokens"] == 16 and request["finish_reason"] == "length"
    assert (summary.prefill_steps, summary.decode_steps, summary.mixed_steps) == (1, 15, 0), (
        "the prefill step samples too"
    )
    assert summary.context_tokens == request["prompt_tokens"], "the whole prompt fits the budget of one step"
    assert summary.generation_tokens == 15


def test_who_stops_asking_for_steps(impl):
    empty = {
        v: impl.summarize(impl.parse_iterations(text(f"cpu-{v}-one.log"))).empty_steps for v in ("default", "inproc")
    }
    assert empty == {"default": 1, "inproc": 0}, (
        "the busy loop of the engine process runs once more to report the finished id; in one process nobody asks again"
    )


def test_the_last_word_on_async_scheduling(impl):
    assert impl.parse_startup(text("cpu-default-one.log")).async_scheduling is False, (
        "the front end says enabled, the engine's process says disabled later: the second runs the loop"
    )
    assert impl.parse_startup(text("cpu-sync-one.log")).async_scheduling is False
    said = "\n".join(f"INFO Asynchronous scheduling is {word}." for word in ("enabled", "disabled", "enabled"))
    assert impl.parse_startup(said).async_scheduling is True, "three lines: the rule is about time, not about a word"
    assert facts("cpu-default-one.json")["async_scheduling_in_effect"] is False


def test_a_log_can_be_wrong(impl):
    assert impl.parse_startup(text("cpu-inproc-one.log")).async_scheduling is True, (
        "one process, one line, written too early"
    )
    assert facts("cpu-inproc-one.json")["async_scheduling_in_effect"] is False, "the configuration object is the truth"


def test_cpu_capacity(impl):
    startup, run = impl.parse_startup(text("cpu-default-one.log")), facts("cpu-default-one.json")
    assert startup.version == "0.22.1" == run["vllm"]
    assert startup.max_num_batched_tokens == 4096
    concurrency = impl.max_concurrency(run["num_blocks"], run["block_size"], run["max_model_len"])
    assert startup.max_concurrency == round(concurrency, 2)
    assert startup.kv_cache_tokens == int(concurrency * run["max_model_len"])


def test_real_vllm_plans_as_mini_vllm_does():
    """Eleven and seven tokens, four outputs each, budget 8: the same plan, step by step (lab 04 explains it)."""
    from mini_vllm import LLMEngine, SamplingParams

    run = facts("cpu-inproc-two.json")
    ids = list(dict.fromkeys(rid for step in run["steps"] for rid in step))
    real = [{ids.index(rid): n for rid, n in step.items()} for step in run["steps"]]
    engine = LLMEngine(max_num_batched_tokens=8, max_num_seqs=8)
    for i, length in enumerate((11, 7)):
        engine.add_request(str(i), "x" * length, SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True))
    mini, original = [], engine.scheduler.schedule

    def schedule():
        output = original()
        mini.append({int(rid): n for rid, n in output.num_scheduled_tokens.items()})
        return output

    engine.scheduler.schedule = schedule
    while engine.has_unfinished_requests():
        engine.step()
    assert real == mini == [{0: 8}, {0: 3, 1: 5}, {0: 1, 1: 2}, {0: 1, 1: 1}, {0: 1, 1: 1}, {1: 1}]


def test_the_log_agrees_with_the_probe(impl):
    run = facts("cpu-inproc-two.json")
    records = impl.parse_iterations(text("cpu-inproc-two.log"))
    logged = [r.context_tokens + r.generation_tokens for r in records]
    assert logged == [sum(step.values()) for step in run["steps"]] == [8, 8, 3, 2, 2, 1]
    assert impl.summarize(records) == impl.Summary(2, 3, 1, 0, 18, 6)


# ---- the captures from an H200 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "empty"), [("h200-iterations-async", 2), ("h200-iterations-sync", 1)])
def test_h200_requests(impl, name, empty):
    records = impl.parse_iterations(text(f"{name}.log"))
    assert [r.index for r in records] == list(range(len(records))), "no line is missing"
    shapes = [(g[0].context_requests, g[0].context_tokens, len(g) - 1) for g in requests_of(records)]
    assert shapes == [(1, 6, 15), (1, 6, 15), (1, 6, 15), (2, 46, 3)], (
        "(requests, prompt tokens, decode steps) of each call"
    )
    summary = impl.summarize(records)
    assert summary.empty_steps == empty * 4, f"{empty} empty iteration(s) after each of the four calls"
    assert (summary.prefill_steps, summary.decode_steps) == (4, 48)
    assert (summary.context_tokens, summary.generation_tokens) == (64, 51)


def test_h200_says_which_loop_it_runs(impl):
    assert impl.parse_startup(text("h200-iterations-async.log")).async_scheduling is True
    assert impl.parse_startup(text("h200-iterations-sync.log")).async_scheduling is False


@pytest.mark.parametrize(
    ("name", "blocks", "max_model_len"),
    [("h200-start-04-256", 99_289, 256), ("h200-start-05-2048", 124_739, 2048), ("h200-start-09-2048", 226_539, 2048)],
)
def test_h200_capacity_is_arithmetic(impl, name, blocks, max_model_len):
    startup = impl.parse_startup(text(f"{name}.log"))
    assert startup.kv_cache_tokens == blocks * 16
    assert startup.max_concurrency == round(impl.max_concurrency(blocks, 16, max_model_len), 2)
    assert startup.max_num_batched_tokens == 16_384


def test_the_elapsed_time_is_not_the_step_time(impl):
    records = impl.parse_iterations(text("h200-iterations-async.log"))
    logged = sum(r.elapsed_ms for g in requests_of(records)[1:2] for r in g)
    rows = [json.loads(line) for line in text("h200-results.jsonl").splitlines()]
    (wall,) = [r["ms"] for r in rows if r["exp"] == "iter" and r["what"] == "one_request" and r["k"] == 1]
    assert logged < 1 < 30 < wall, (
        f"{logged:.2f} ms logged, {wall} ms on the clock: only the wait for the result is timed"
    )


# ---- a run of your own ---------------------------------------------------------------------------------------------


@pytest.mark.real_vllm
def test_live(impl, real_vllm_python, tmp_path):
    """About half a minute: starts vLLM on models/pocket and reads its log with your functions."""
    command = [str(real_vllm_python), str(HERE / "real_run.py"), "--model", str(POCKET), "--out", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-3000:]
    run = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    (request,) = run["requests"]
    assert (request["output_tokens"], request["finish_reason"]) == (16, "length")
    summary = impl.summarize(impl.parse_iterations(done.stdout))
    assert (summary.prefill_steps, summary.decode_steps) == (1, 15)
    assert summary.context_tokens == request["prompt_tokens"]
    assert impl.parse_startup(done.stdout).version == run["vllm"]
