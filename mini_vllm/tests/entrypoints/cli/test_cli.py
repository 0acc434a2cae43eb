"""The command line, run in process on the toy model and on a tiny random checkpoint with a chat template."""

from __future__ import annotations

import io
import json
import re
import signal
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from mini_vllm.engine.llm_engine import LLMEngine
from mini_vllm.entrypoints.cli import common
from mini_vllm.entrypoints.cli.chat import rule_for, suggestions
from mini_vllm.entrypoints.cli.common import find_model, format_bytes, parse_bytes, parse_engine_args
from mini_vllm.entrypoints.cli.main import app
from mini_vllm.entrypoints.cli.stream import StreamWriter, stream_answer
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tests.tokenizers.test_tokenizer import simple_spec

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 280, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "eos_token_id": 279,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny random Llama with a byte-level tokenizer and a chat template."""
    folder = save_random_checkpoint(tmp_path_factory.mktemp("cli") / "tiny", CONFIG)
    spec = simple_spec(["t h", "th e"])
    spec["added_tokens"] = [{"id": 279, "content": "</s>", "special": True}]
    (folder / "tokenizer.json").write_text(json.dumps(spec), encoding="utf-8")
    config = {"eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def run(*args: str, stdin: str | None = None, code: int = 0):
    """One command; what makes an engine gets a small pool, as the default would be a quarter of a million blocks."""
    if args[:1] in (("generate",), ("chat",), ("bench",)) and not {"--kv-memory", "--help"} & {*args}:
        args = (*args, "--kv-memory", "8MiB")
    result = CliRunner().invoke(app, list(args), input=stdin)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_help_lists_the_commands_and_each_has_its_own():
    text = run("--help").stdout
    assert all(name in text for name in ("generate", "chat", "info", "bench"))
    for command in (["generate"], ["chat"], ["info"], ["bench", "throughput"], ["bench", "latency"]):
        assert "--debug" in run(*command, "--help").stdout


def test_one_prompt_streams_and_the_summary_goes_to_stderr(checkpoint):
    result = run("generate", "-m", checkpoint, "-p", "hello", "-n", "5", "-t", "0")
    assert "5 tokens" in result.stderr and "finished: length" in result.stderr and "tokens" not in result.stdout
    whole = run("generate", "-m", checkpoint, "-p", "hello", "-n", "5", "-t", "0", "--json")
    record = json.loads(whole.stdout)
    assert record["text"] == result.stdout.removesuffix("\n")
    assert record["finish_reason"] == "length" and len(record["token_ids"]) == 5


def test_the_chat_template_is_applied_unless_raw(checkpoint):
    def prompt_tokens(*more: str) -> int:
        return json.loads(run("generate", "-m", checkpoint, "-p", "xyz", "-n", "1", "--json", *more).stdout)[
            "num_prompt_tokens"
        ]

    assert prompt_tokens("--raw") == 3
    assert prompt_tokens() == len("[user] xyz") + 1 + len("[assistant] ")
    assert prompt_tokens("--system", "ab") == prompt_tokens() + len("[system] ab") + 1


def test_many_prompts_are_one_batch_in_order(checkpoint, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('"second"\n\n{"prompt": "third"}\n', encoding="utf-8")
    args = ("generate", "-m", checkpoint, "-p", "first", "-f", str(file), "-n", "3", "-t", "0")
    records = [json.loads(line) for line in run(*args, "--json").stdout.splitlines()]
    assert [r["prompt"] for r in records] == ["first", "second", "third"]
    text = run(*args)
    assert [line for line in text.stdout.splitlines() if line.startswith("›")] == ["› first", "› second", "› third"]
    assert "3 prompts → 9 tokens" in text.stderr


def test_several_completions_of_a_seeded_prompt(checkpoint):
    args = (
        "generate",
        "-m",
        checkpoint,
        "-p",
        "x",
        "-n",
        "6",
        "-t",
        "1",
        "--seed",
        "3",
        "--num-completions",
        "2",
        "--json",
    )
    first, second = (json.loads(line) for line in run(*args).stdout.splitlines())
    assert (first["index"], second["index"]) == (0, 1) and first["token_ids"] != second["token_ids"]
    assert run(*args).stdout == run(*args).stdout


def test_the_toy_model_needs_no_checkpoint():
    assert "4 tokens" in run("generate", "-m", "toy", "-p", "hi", "-n", "4").stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["generate", "-m", "no/such/folder"], "no/such/folder"),
        (["generate", "-m", "toy", "--temperature", "-1"], "temperature must be 0"),
        (["generate", "-m", "toy", "--max-tokens", "0"], "max_tokens must be at least 1"),
        (["generate", "-m", "toy", "-E", "block_size=0"], "block_size must be at least 1"),
        (["generate", "-m", "toy", "-E", "blok_size=8"], "'blok_size'; did you mean 'block_size'? Allowed: "),
        (["generate", "-m", "toy", "-E", "foo=8"], "unknown engine argument 'foo'. Allowed: "),
        (["generate", "-m", "toy", "-E", "block_size"], "--engine must be NAME=VALUE, got 'block_size'"),
        (["generate", "-m", "toy", "--kv-memory", "lots"], "memory must be a size such as 512MiB"),
        (["generate", "-m", "toy", "-p", ""], "prompt"),
        (["generate", "-m", "toy", "-p", "a", "-p", "b", "--stream"], "--stream shows one completion"),
        (["generate", "-m", "toy", "--system", "x"], "--system needs a checkpoint with a chat template"),
        (["generate", "-m", "toy", "-f", "absent.txt"], "absent.txt"),
        (["chat", "-m", "toy"], "toy has no chat template"),
        (["info", "no/such/folder"], "no/such/folder"),
        (["info", "toy"], "the toy model has no checkpoint"),
        (["bench", "throughput", "-m", "toy", "--input-len", "100000"], "must be shorter than max_model_len"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(args, words):
    result = run(*args, code=2)
    assert words in result.stderr and "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1 and result.stderr.startswith("error: ")


def test_debug_keeps_the_traceback():
    result = CliRunner().invoke(app, ["generate", "-m", "toy", "-t", "-1", "--debug"])
    assert isinstance(result.exception, ValueError) and result.exit_code == 1


def test_damaged_prompt_files_are_named_with_their_line(tmp_path):
    file = tmp_path / "p.jsonl"
    for content, words in (('"ok"\n{"a": 1}\n', "line 2: expected a string"), ("{\n", "line 1: not valid JSON")):
        file.write_text(content, encoding="utf-8")
        assert words in run("generate", "-m", "toy", "-f", str(file), code=2).stderr
    (tmp_path / "empty.txt").write_text("\n", encoding="utf-8")
    assert "holds no prompt" in run("generate", "-m", "toy", "-f", str(tmp_path / "empty.txt"), code=2).stderr


def test_chat_reuses_the_cached_prefix_and_says_so(checkpoint):
    lines = "a first message that is long enough to fill a few blocks\nand another\n/stats\n/quit\nnot reached\n"
    text = run("chat", "-m", checkpoint, "-n", "20", "-t", "0", "--engine", "block_size=4", stdin=lines).stdout
    rows = [re.findall(r"\d+", line) for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == 2 and rows[0][:4] == ["1", "75", "0", "0"]
    prompt, cached = int(rows[1][1]), int(rows[1][2])
    assert 75 // 4 * 4 <= cached < prompt
    assert "hit rate" in text and "not reached" not in text


def test_chat_commands(checkpoint):
    lines = "/help\n\n/system You are brief.\nhi\n/reset\n/stats\n/nonsense\n/exit\n"
    text = run("chat", "-m", checkpoint, "-n", "2", stdin=lines).stdout
    assert "/system TEXT" in text and "conversation forgotten" in text and "unknown command /nonsense" in text
    assert "system message set" in text


def test_pocket_answers_what_chat_suggests():
    questions = suggestions(POCKET)
    text = run("chat", "-m", str(POCKET), "--kv-memory", "32MiB", stdin="\n".join(questions) + "\n/quit\n").stdout
    opening, *answers = text.split("› ")
    assert opening.splitlines()[1:] == [f"  try: {question}" for question in questions] and len(questions) == 3
    known = ["the unit in which KV memory is handed out", "Decode is the part of a request", "fox"]
    for question, answer, words in zip(questions, answers, known, strict=False):
        assert answer.startswith(f"{question}\n") and words in answer and "I do not know" not in answer
    assert answers[2].count("violin") > 1 and answers[2].rstrip().endswith(".")


def test_what_to_learn_is_answered_by_rule():
    lines = "What should I learn first?\n/stats\n/quit\n"
    shown = run("chat", "-m", str(POCKET), "--kv-memory", "32MiB", stdin=lines).stdout
    assert "`course next` says what comes next" in shown and "not the model" in shown and "0 steps" in shown
    for asked in ("Where do I start?", "what should we read next", "How do I begin here?", "So what do I do now?"):
        assert rule_for(POCKET, asked), asked
    for asked in ("What is a step?", "How do I start the server?", "What do I read in a step?", "What is first?"):
        assert rule_for(POCKET, asked) is None, asked


def test_rules_that_are_none_are_named(tmp_path):
    assert rule_for(tmp_path, "Where do I start?") is None
    for text in ("{", '["x"]', '[{"asks": "(", "answer": "a"}]', '[{"asks": "a"}]'):
        (tmp_path / "rules.json").write_text(text)
        with pytest.raises(ValueError, match=r"rules.json is not a list of"):
            rule_for(tmp_path, "a")


def test_a_model_without_suggestions_makes_none(checkpoint):
    assert suggestions(checkpoint) == [] and "try:" not in run("chat", "-m", checkpoint, stdin="/quit\n").stdout


def test_stats_fit_the_terminal(checkpoint):
    lines = (
        run("chat", "-m", checkpoint, "-n", "2", stdin="hi\n/stats\n").stdout.partition("this session")[2].splitlines()
    )
    assert max(cell_len(line.rstrip()) for line in lines) <= 80 and any("prefix cache" in line for line in lines)


def test_lines_of_a_terminal_break_between_words_and_stay_whole_elsewhere(monkeypatch):
    assert common.out().soft_wrap
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not common.out().soft_wrap


def test_chat_goes_on_after_an_error_and_at_the_end_of_the_input(checkpoint):
    text = run("chat", "-m", checkpoint, "-n", "2", stdin="x" * 400 + "\nshort\n").stdout
    assert "error:" in text and "max_model_len" in text and text.index("error:") < text.index("› short")


def test_chat_drops_the_oldest_turns_when_the_context_is_full(checkpoint):
    lines = "".join(f"message number {i} with some words in it\n" for i in range(8)) + "/stats\n"
    text = run("chat", "-m", checkpoint, "-n", "8", "-t", "0", stdin=lines).stdout
    assert "oldest 1 turn(s) were dropped" in text and "error" not in text


def test_ctrl_c_ends_the_answer_and_the_engine_stays_usable():
    engine = LLMEngine(num_blocks=64)
    pieces: list[str] = []

    def write(piece: str) -> None:
        pieces.append(piece)
        if len(pieces) == 3:
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    params = SamplingParams(max_tokens=100, temperature=0, allowed_token_ids=list(range(97, 123)))
    answer = stream_answer(engine, "hi", params, write, "r")
    assert answer.finish_reason == "abort" and 3 <= answer.num_tokens <= 5
    assert signal.getsignal(signal.SIGINT) is before and not engine.has_unfinished_requests()
    again = stream_answer(
        engine, "hi", SamplingParams(max_tokens=4, temperature=0, ignore_eos=True), pieces.append, "r"
    )
    assert again.finish_reason == "length" and again.num_tokens == 4


def test_a_streamed_word_is_not_cut_by_the_edge_of_the_terminal():
    for width in range(4, 30):
        file = io.StringIO()
        writer = StreamWriter(Console(file=file, force_terminal=True, width=width, highlight=False, soft_wrap=True))
        for piece in ("Hel", "lo wor", "ld, ", "a", "b\n\nnext", " 日本", "語 extraordinarily lo", "ng"):
            writer.write(piece)
        writer.close()
        text = file.getvalue()
        assert text.split() == ["Hello", "world,", "ab", "next", "日本語", "extraordinarily", "long"]
        assert all(cell_len(line.rstrip()) <= max(width, len("extraordinarily")) for line in text.splitlines())
    file = io.StringIO()
    writer = StreamWriter(Console(file=file, width=4))
    writer.write("a long line")
    assert file.getvalue() == "a long line"


def test_do_sample_false_means_greedy(checkpoint):
    path = Path(checkpoint) / "generation_config.json"
    path.write_text('{"do_sample": false}', encoding="utf-8")
    try:
        texts = {run("generate", "-m", checkpoint, "-p", "hello", "-n", "8").stdout for _ in range(3)}
    finally:
        path.unlink()
    assert len(texts) == 1


def test_info_begins_in_plain_words():
    first, *rest = run("info").stdout.splitlines()
    assert first.startswith("models/pocket is a language model of ") and "5,771,520" in first and "Phase 00" in first
    assert not any("attention backend" in line for line in rest), "that is phase 04's"


def test_info(checkpoint):
    text = run("info", checkpoint, "--kv-memory", "1MiB").stdout
    assert "LlamaForCausalLM" in text and "2 queries per KV head" in text and "256 tokens" in text
    # 2 x 2 layers x 2 KV heads x 8 x 4 B = 256 B a token; 4096 B a block; 256 blocks, less the null block, x 16
    assert re.search(r"float32\s*│\s*256\s*│\s*256\s*│\s*4,080\s*│\s*15\.9", text)


def test_bench(checkpoint):
    sizes = ("--input-len", "8", "--output-len", "4")
    text = run("bench", "throughput", "-m", checkpoint, "--num-prompts", "3", *sizes).stdout
    assert "3 requests, 8 in, 4 out" in text and "output tokens/s" in text
    text = run("bench", "latency", "-m", checkpoint, "--num-iters", "2", "--batch-size", "2", *sizes).stdout
    assert all(name in text for name in ("time to first token", "inter-token latency", "whole request", "p99"))
    assert "nan" in run("bench", "latency", "-m", checkpoint, "--num-iters", "1", "--output-len", "1").stdout


def test_sizes_and_engine_arguments():
    assert parse_bytes("512MiB") == 512 << 20 and parse_bytes("2g") == 2 << 30 and parse_bytes("100") == 100
    assert parse_bytes("1.5 KiB") == 1536 and parse_bytes(None) is None
    assert format_bytes(1536) == "1.5 KiB" and format_bytes(12) == "12 B" and format_bytes(3 << 40) == "3.0 TiB"
    parsed = parse_engine_args(["block-size=8", "dtype=float64", "enable_prefix_caching=false"])
    assert parsed == {"block_size": 8, "dtype": "float64", "enable_prefix_caching": False}


def test_the_default_model_is_looked_for_and_its_absence_is_said(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/pocket").mkdir(parents=True)
    (tmp_path / "models/pocket/config.json").write_text("{}", encoding="utf-8")
    assert find_model(None) == str(tmp_path / "models/pocket")
    assert find_model("toy") is None and find_model("x") == "x"
