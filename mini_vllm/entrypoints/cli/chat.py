"""`mini-vllm chat`: a conversation that streams, and that finds its own past in the prefix cache."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mini_vllm.entrypoints.cli import common as c
from mini_vllm.entrypoints.cli.images import Images, Videos, read_media, with_media
from mini_vllm.entrypoints.cli.stream import Answer, StreamWriter, stream_answer

HELP = """/stats        what the engine did: tokens, cache hits, speed
/image FILE   show a picture with the next message
/video FILE   likewise an animation
/system TEXT  set the system message and start over (without TEXT: remove it)
/reset        forget the conversation
/help         this list
/quit         leave (also Ctrl-D); Ctrl-C ends the current answer"""
RESERVED_TOKENS = 64
"""Room that a turn keeps for the answer; older turns are dropped to make it."""


@dataclass
class Session:
    """A conversation with one engine. `answers` are kept for `/stats`; `media` goes with the next message."""

    llm: Any
    params: Any
    console: Console
    system: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    media: list[Any] = field(default_factory=list)

    def ask(self, text: str) -> None:
        """One turn: render the conversation, stream the answer, remember it."""
        self.messages.append({"role": "user", "content": with_media(text, self.media)})
        writer = StreamWriter(self.console)
        try:
            prompt = self._prompt()
            answer = stream_answer(self.llm.llm_engine, prompt, self.params, writer.write, f"chat-{len(self.answers)}")
        except ValueError:
            self.messages.pop()
            raise
        writer.close()
        self.media = []
        self.answers.append(answer)
        if answer.finish_reason == "error":
            self.messages.pop()
            raise ValueError(f"the answer ended with an error: {answer.stop_reason}")
        if answer.finish_reason == "abort":
            self.console.print("(stopped)", style="dim")
        # A stopped answer stays as far as it came: the conversation then matches what stands on the screen.
        self.messages.append({"role": "assistant", "content": answer.text})

    def _prompt(self) -> Any:
        """The conversation as a prompt; the oldest turns go where the context is too short for all."""
        limit = self.llm.llm_engine.max_model_len
        dropped = 0
        while True:
            prompt = self.llm.render_chat(self._head() + self.messages)
            if self._num_tokens(prompt) + RESERVED_TOKENS <= limit or len(self.messages) < 3:
                break
            del self.messages[:2]
            dropped += 1
        if dropped:
            note = f"(the context of {limit} tokens is full: the oldest {dropped} turn(s) were dropped)"
            self.console.print(note, style="dim")
        return prompt

    def _num_tokens(self, prompt: Any) -> int:
        """With the placeholders of its pictures; these are made ready once, and kept."""
        multimodal = self.llm.llm_engine.input_processor.multimodal
        ids = prompt["prompt_token_ids"]
        return len(ids if multimodal is None else multimodal.process(prompt, ids)[0])

    def _head(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def reset(self) -> None:
        """Forget the conversation; the engine's cache stays."""
        self.messages.clear()
        self.media.clear()

    def stats(self) -> Table:
        """Answers one by one, and the engine's totals."""
        table = Table(
            "turn", "prompt tokens", "from cache", "new tokens", "first token", "tokens per s", title="this session"
        )
        for column in table.columns:
            column.justify = "right"
        for turn, a in enumerate(self.answers, start=1):
            share = f"{a.num_cached_tokens} ({a.num_cached_tokens / max(a.num_prompt_tokens, 1):.0%})"
            speed = f"{a.tokens_per_second:.0f}" if a.tokens_per_second else "–"
            row = (turn, a.num_prompt_tokens, share, a.num_tokens, f"{a.ttft * 1000:.0f} ms", speed)
            table.add_row(*map(str, row))
        stats = self.llm.llm_engine.stats
        table.caption = (
            f"{stats.num_steps} steps, {stats.num_scheduled_tokens} tokens through the model, prefix cache hit rate "
            f"{stats.prefix_cache_hit_rate:.0%}, {stats.num_preemptions} preemptions"
        )
        return table


@c.reports_errors
def chat(
    model: c.Model = None,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    image: Images = None,
    video: Videos = None,
    max_tokens: c.MaxTokens = None,
    temperature: c.Temperature = None,
    top_p: c.TopP = None,
    top_k: c.TopK = None,
    min_p: c.MinP = None,
    repetition_penalty: c.RepetitionPenalty = None,
    seed: c.Seed = None,
    kv_memory: c.KVMemory = None,
    attention_backend: c.AttentionBackend = None,
    quantization: c.Quantization = None,
    kv_cache_dtype: c.KVCacheDtype = None,
    engine: c.Engine = None,
    with_labs: c.WithLabs = None,
    debug: c.Debug = False,
) -> None:
    """Talk to a checkpoint with a chat template. /help lists the commands."""
    llm = c.load_llm(
        model, engine, with_labs, kv_cache_memory_bytes=c.parse_bytes(kv_memory), attention_backend=attention_backend,
        quantization=quantization, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    if not c.has_chat_template(llm):
        raise ValueError(f"{model or 'this model'} has no chat template; use: mini-vllm generate --raw")
    params = c.sampling_params(
        llm, max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed,
    )  # fmt: skip
    console = c.out()
    session = Session(llm, params, console, system, media=read_media(llm, image, video))
    name = c.short_path(llm.llm_engine.folder)
    console.print(f"{name}, context {llm.llm_engine.max_model_len} tokens. /help, /quit", style="dim")
    for text in suggestions(llm.llm_engine.folder):
        console.print(f"  try: {text}", style="dim", markup=False)
    for line in read_lines(console):
        try:
            if not handle(session, line):
                break
        except ValueError as error:
            if debug:
                raise
            console.print(Text(f"error: {error}", style="bold red"))


def suggestions(folder: str | Path) -> list[str]:
    """What a checkpoint answers well: the lines of its `suggestions.txt`; none where it has no such file."""
    path = Path(folder) / "suggestions.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def rule_for(folder: str | Path, line: str) -> str | None:
    """The answer that a checkpoint's `rules.json` gives to what its model was not trained to answer; None where no rule
    fits, or there is no such file. It is a list of {"asks": a regular expression, "answer": text}.

    Raises:
        ValueError: the file is no such list; names it.
    """
    path = Path(folder) / "rules.json"
    if not path.is_file():
        return None
    try:
        rules = [(re.compile(rule["asks"], re.I), str(rule["answer"])) for rule in json.loads(path.read_text("utf-8"))]
    except (ValueError, KeyError, TypeError, re.error) as error:
        raise ValueError(f'{path} is not a list of {{"asks": …, "answer": …}}: {error}') from None
    return next((answer for asks, answer in rules if asks.search(line)), None)


def handle(session: Session, line: str) -> bool:
    """One line of the user: a command or a message. Returns False to leave."""
    command, _, rest = line.strip().partition(" ")
    console = session.console
    if not command:
        return True
    if not command.startswith("/"):
        if said := rule_for(session.llm.llm_engine.folder, line.strip()):
            console.print(said, markup=False, highlight=False)
            console.print("(a rule beside the checkpoint, not the model)", style="dim")
        else:
            session.ask(line.strip())
        return True
    if command in ("/quit", "/exit"):
        return False
    if command == "/stats":
        console.print(session.stats(), soft_wrap=False)
    elif command in ("/image", "/video"):
        session.media += read_media(session.llm, **{f"{command[1:]}s": [Path(rest.strip())]})
        console.print(f"({len(session.media)} picture(s) or film(s) with the next message)", style="dim")
    elif command == "/reset":
        session.reset()
        console.print("(conversation forgotten)", style="dim")
    elif command == "/system":
        session.system = rest.strip() or None
        session.reset()
        console.print("(system message set, conversation forgotten)", style="dim")
    else:
        console.print(HELP if command == "/help" else f"unknown command {command}\n{HELP}", style="dim", markup=False)
    return True


def read_lines(console: Console) -> Iterator[str]:
    """Lines of the user until the input ends. On a terminal with a prompt and history; Ctrl-C clears the line."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            console.print(Text(f"› {line.rstrip()}", style="bold cyan"))
            yield line
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # arrow keys and history for input()
    while True:
        try:
            yield console.input("[bold cyan]› [/]")
        except EOFError:
            console.out("")
            return
        except KeyboardInterrupt:
            console.print("\n(/quit or Ctrl-D to leave)", style="dim")
