"""`mini-vllm generate`: continue one prompt as a stream, or many as one batch."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from mini_vllm.core.sched.trace import record
from mini_vllm.entrypoints.cli import adapters as a
from mini_vllm.entrypoints.cli import common as c
from mini_vllm.entrypoints.cli.images import Images, Videos, media_data, read_media, with_media
from mini_vllm.entrypoints.cli.speculative import Drafts, draft_summary, speculative_config
from mini_vllm.entrypoints.cli.stream import StreamWriter, stream_answer
from mini_vllm.entrypoints.cli.structured import Choice, JsonSchema, Regex, structured_outputs
from mini_vllm.profiler.wrapper import profile
from mini_vllm.utils.checks import naming

FIRST_PROMPT = "What is a KV block?"


Prompts = Annotated[list[str] | None, typer.Option("--prompt", "-p", help="May be given several times.")]
PromptsFile = Annotated[
    Path | None, typer.Option("--prompts-file", "-f", help="One prompt a line; .jsonl: strings or {'prompt': …}.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")]
System = Annotated[str | None, typer.Option("--system", help="System message, with a chat template.")]
Stream = Annotated[
    bool | None, typer.Option("--stream/--no-stream", help="Show text as it is made.", show_default="one prompt")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a completion.")]
NumCompletions = Annotated[int, typer.Option("--num-completions", help="Completions per prompt (temperature > 0).")]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Write the scheduler's steps as JSON, for the website's player.")
]
ProfileFile = Annotated[
    Path | None, typer.Option("--profile", help="Write what took how long as a trace for ui.perfetto.dev.")
]


@c.reports_errors
def generate(
    model: c.Model = None,
    prompt: Prompts = None,
    prompts_file: PromptsFile = None,
    raw: Raw = False,
    system: System = None,
    image: Images = None,
    video: Videos = None,
    stream: Stream = None,
    as_json: AsJson = False,
    n: NumCompletions = 1,
    max_tokens: c.MaxTokens = None,
    temperature: c.Temperature = None,
    top_p: c.TopP = None,
    top_k: c.TopK = None,
    min_p: c.MinP = None,
    repetition_penalty: c.RepetitionPenalty = None,
    seed: c.Seed = None,
    stop: c.Stop = None,
    json_schema: JsonSchema = None,
    regex: Regex = None,
    choice: Choice = None,
    drafts: Drafts = None,
    lora: a.Loras = None,
    kv_memory: c.KVMemory = None,
    attention_backend: c.AttentionBackend = None,
    quantization: c.Quantization = None,
    kv_cache_dtype: c.KVCacheDtype = None,
    engine: c.Engine = None,
    with_labs: c.WithLabs = None,
    trace: TraceFile = None,
    profile_to: ProfileFile = None,
    debug: c.Debug = False,
) -> None:
    """Generate text. A checkpoint with a chat template answers the prompt; --raw continues it."""
    prompts = read_prompts(prompt, prompts_file)
    for flag, file in (("--trace", trace), ("--profile", profile_to)):
        if file is not None:
            check_writable(file, flag)
    form = structured_outputs(json_schema, regex, choice)
    loras = a.parse_loras(lora)
    one = len(prompts) == len(loras) == 1 and n == 1 and not as_json
    if stream and not one:
        raise ValueError("--stream shows one completion: give one prompt, without --json and --num-completions.")
    llm = c.load_llm(
        model, engine, with_labs, kv_cache_memory_bytes=c.parse_bytes(kv_memory), attention_backend=attention_backend,
        quantization=quantization, kv_cache_dtype=kv_cache_dtype, speculative_config=speculative_config(drafts),
        **a.engine_args(loras),
    )  # fmt: skip
    params = c.sampling_params(
        llm, max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed, stop=stop, n=n, structured_outputs=form,
    )  # fmt: skip
    rendered = render_prompts(llm, prompts, raw, system, read_media(llm, image, video))
    with profile(llm, profile_to), record(llm.llm_engine) if trace else nullcontext() as recorded:
        if one and stream is not False:
            _stream(llm, rendered[0], params, loras[0])
        else:
            _batch(llm, prompts, rendered, params, as_json, loras)
    if (told := draft_summary(llm)) is not None:
        c.err().print(told, style="dim")
    if trace and recorded is not None:
        recorded.write(trace)
        c.err().print(f"{len(recorded.steps)} steps written to {trace}", style="dim")


def read_prompts(prompts: list[str] | None, file: Path | None) -> list[str]:
    """The prompts of both options, in order; a first one to try where there are none. Raises ValueError."""
    found = list(prompts or ())
    try:
        with naming("--prompts-file", str(file)):
            lines = file.read_text(encoding="utf-8").splitlines() if file else []
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompts-file {file}: not a text file in UTF-8 ({error}).") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if file is not None and file.suffix == ".jsonl":
            found.append(_json_prompt(line, f"{file}, line {number}"))
        else:
            found.append(line)
    if file is not None and not found:
        raise ValueError(f"{file} holds no prompt.")
    return found or [FIRST_PROMPT]


def check_writable(file: Path, flag: str) -> None:
    """Raises ValueError, which names flag and file, where it could not be written. Nothing of it is changed, or left
    behind."""
    with naming(flag, str(file)):
        is_new = not file.exists()
        with file.open("a"):
            pass
        if is_new:
            file.unlink()


def _json_prompt(line: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON ({error}).") from None
    prompt = value.get("prompt") if isinstance(value, dict) else value
    if not isinstance(prompt, str):
        raise ValueError(f"{where}: expected a string or an object with 'prompt', got {line.strip()!r}.")
    return prompt


def render_prompts(llm: Any, prompts: list[str], raw: bool, system: str | None, media: Sequence[Any] = ()) -> list[Any]:
    """Prompts for the engine: through the chat template where there is one and `raw` is not set. media: of each."""
    if raw or not c.has_chat_template(llm):
        if system is not None:
            raise ValueError("--system needs a checkpoint with a chat template, and no --raw.")
        return [{"prompt": text, **media_data(media)} if media else text for text in prompts]
    head = [{"role": "system", "content": system}] if system is not None else []
    return [llm.render_chat([*head, {"role": "user", "content": with_media(text, media)}]) for text in prompts]


def _stream(llm: Any, prompt: Any, params: Any, lora: Any) -> None:
    writer = StreamWriter(c.out())
    answer = stream_answer(llm.llm_engine, prompt, params, writer.write, "generate-0", lora)
    writer.close()
    c.err().print(answer.summary(), style="dim")
    if answer.finish_reason == "error":
        raise ValueError(f"the request ended with an error: {answer.stop_reason}")


def _batch(llm: Any, prompts: list[str], rendered: list[Any], params: Any, as_json: bool, loras: list[Any]) -> None:
    """Each prompt with each adapter, in one batch."""
    asked = [(prompt, lora) for prompt in prompts for lora in loras]
    both = [(prompt, lora) for prompt in rendered for lora in loras]
    start = time.perf_counter()
    outputs = llm.generate([prompt for prompt, _ in both], params, lora_request=[lora for _, lora in both])
    seconds = time.perf_counter() - start
    console = c.out()
    for (prompt, lora), output in zip(asked, outputs, strict=True):
        for completion in output.outputs:
            if as_json:
                console.out(json.dumps(_as_dict(prompt, output, completion), ensure_ascii=False))
                continue
            shown = f"› {prompt}" if loras == [None] else f"› {a.name_of(lora)}: {prompt}"
            console.print(Text(shown, style="bold cyan"))
            console.out(completion.text + "\n")
    num_tokens = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    summary = f"{len(outputs)} prompts → {num_tokens} tokens in {seconds:.2f} s, {num_tokens / seconds:.0f} tokens/s"
    c.err().print(summary, style="dim")


def _as_dict(prompt: str, output: Any, completion: Any) -> dict[str, Any]:
    return {
        "prompt": prompt,
        **({} if output.lora_request is None else {"lora": output.lora_request.lora_name}),
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "num_prompt_tokens": len(output.prompt_token_ids),
        "num_cached_tokens": output.num_cached_tokens,
    }
