"""What the commands share: options, finding and loading the model, one-line errors."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand

from mini_vllm.engine.parts import PartError, parts_from_labs

Function = TypeVar("Function", bound=Callable[..., None])

DEFAULT_MODEL = "models/pocket"
TOY = "toy"
USAGE_ERRORS = (ValueError, TypeError, OSError, ImportError, OverflowError, MemoryError, PartError)
"""What a wrong argument, a missing file or extra, or a wrong lab raises. Anything else is a bug and keeps its
traceback."""

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Folder or hub name; 'toy' = toy model.", show_default=DEFAULT_MODEL),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", "-n", help="Most tokens to generate.")]
Temperature = Annotated[float | None, typer.Option("--temperature", "-t", help="0 = always the likeliest token.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Keep the likeliest tokens up to this probability.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Keep this many of the likeliest tokens; 0 = all.")]
MinP = Annotated[float | None, typer.Option("--min-p", help="Drop tokens below this share of the likeliest one.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes random sampling repeatable.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="End at this text; may be given several times.")]
RepetitionPenalty = Annotated[float | None, typer.Option("--repetition-penalty", help="Above 1: repeat less.")]
Engine = Annotated[
    list[str] | None, typer.Option("--engine", "-E", help="Engine argument, e.g. block_size=8.", metavar="NAME=VALUE")
]
KVMemory = Annotated[str | None, typer.Option("--kv-memory", help="Memory of the KV cache, e.g. 512MiB or 2GiB.")]
AttentionBackend = Annotated[
    str | None,
    typer.Option("--attention-backend", help="dense, paged_gather, paged_online or split_kv.", show_default="selected"),
]
Quantization = Annotated[
    str | None,
    typer.Option(
        "--quantization", "-q", help="Store weights as int8, int4, fp8 or nf4.", show_default="as the checkpoint says"
    ),
]
KVCacheDtype = Annotated[
    str | None,
    typer.Option("--kv-cache-dtype", help="Store keys and values as auto, int8 or fp8.", show_default="auto"),
]
WithLabs = Annotated[
    str | None,
    typer.Option(
        "--with-labs",
        help="Run on your lab code: all where nothing follows, or labs such as 02-01,03-01; solution = the references.",
        metavar="[LABS]",
    ),
]


class LabsCommand(TyperCommand):
    """A command whose `--with-labs` may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put "all" where no labs follow."""
        for at, word in enumerate(args):
            following = args[at + 1] if at + 1 < len(args) else ""
            if word == "--with-labs" and (not following or following.startswith("-")):
                args[at] = "--with-labs=all"
        return super().parse_args(ctx, args)


def out() -> Console:
    """Results. Made on each call, so that it writes to the stdout of the moment."""
    return _console()


def err() -> Console:
    """Everything that is not a result: progress, timings, errors."""
    return _console(stderr=True)


def _console(**kwargs: Any) -> Console:
    """On a terminal lines break between words; elsewhere they stay whole, for whatever reads them. Never of no width:
    rich would print nothing at all under COLUMNS=0."""
    console = Console(highlight=False, **kwargs)
    if console.width <= 0:
        console = Console(highlight=False, width=80, **kwargs)
    console.soft_wrap = not console.is_terminal
    return console


def reports_errors(command: Function) -> Function:
    """One clear line in red and exit code 2 in place of a traceback (`--debug` keeps it); 130 after Ctrl-C."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            err().print("interrupted", style="dim")
            raise typer.Exit(130) from None
        except BrokenPipeError:  # e.g. `| head`: the reader has gone, and so has stdout
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except USAGE_ERRORS as error:
            if kwargs.get("debug") or "--debug" in getattr(kwargs.get("context"), "args", ()):
                raise
            err().print(Text(f"error: {error or type(error).__name__}", style="bold red"))
            raise typer.Exit(2) from None

    return wrapped  # type: ignore[return-value]


def find_model(model: str | None) -> str | None:
    """The folder or hub name to load; None for the toy model. By default the committed checkpoint, looked for in the
    working directory and beside the package. Raises FileNotFoundError."""
    if model is not None:
        return None if model == TOY else model
    for root in (Path.cwd(), Path(__file__).resolve().parents[3]):
        if (root / DEFAULT_MODEL / "config.json").is_file():
            return str(root / DEFAULT_MODEL)
    raise FileNotFoundError(
        f"the default checkpoint {DEFAULT_MODEL} is neither in the working directory nor in the repository; "
        "name one with --model FOLDER (or --model toy)."
    )


def short_path(path: str | Path) -> str:
    """A path as one would type it: relative where it lies below the working directory."""
    path = Path(path)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def load_llm(
    model: str | None, engine: list[str] | None = None, with_labs: str | None = None, **engine_args: Any
) -> Any:
    """An `LLM` for the `--model`, engine and lab options, with a spinner while the weights are read."""
    from mini_vllm.entrypoints.llm import LLM

    name = find_model(model)
    args = {k: v for k, v in engine_args.items() if v is not None} | parse_engine_args(engine)
    args["with_labs"] = parts_from_labs(with_labs)
    console = err()
    if not console.is_terminal:
        return LLM(name, **args)
    with console.status(f"Loading {short_path(name) if name else 'the toy model'} …"):
        return LLM(name, **args)


def parse_engine_args(pairs: list[str] | None) -> dict[str, Any]:
    """`["block_size=8", "dtype=float64"]` -> `{"block_size": 8, "dtype": "float64"}`; "1,2" -> [1, 2].

    Raises ValueError.
    """
    parsed: dict[str, Any] = {}
    words: dict[str, Any] = {"true": True, "false": False, "none": None}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--engine must be NAME=VALUE, got {pair!r}.")
        parsed[name.replace("-", "_")] = words.get(value.lower(), _number_or_text(value))
    return parsed


def _number_or_text(value: str) -> Any:
    """ "8" -> 8, "0.5" -> 0.5, "1,2,4" -> [1, 2, 4], '{"a": 1}' -> a dict, anything else as it is."""
    if value.startswith("{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"--engine: {value[:60]!r} is not valid JSON ({error}).") from None
    if re.fullmatch(r"[+-]?\d*\.\d+", value):
        return float(value)
    if len(value) > 4000:
        raise ValueError(f"--engine: a value of {len(value)} characters is too long.")
    if re.fullmatch(r"[+-]?\d+", value):
        return int(value)
    return [int(part) for part in value.split(",")] if re.fullmatch(r"\d+(,\d+)+", value) else value


def parse_sizes(text: str | None) -> list[int] | None:
    """ "1,2,4" -> [1, 2, 4]. Raises ValueError."""
    if text is None:
        return None
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        raise ValueError(f"sizes must be whole numbers with commas between them, such as 1,2,4, got {text!r}.")
    return [int(part) for part in text.split(",")]


def parse_bytes(text: str | None) -> int | None:
    """ "512MiB" -> 536870912; K, M, G with or without iB are powers of 1024. Raises ValueError."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    number = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ") if match else 0
    if not 1 <= number < 1 << 63:
        raise ValueError(f"memory must be a size such as 512MiB or 2GiB, got {text!r}.")
    return int(number)


def format_bytes(number: float) -> str:
    """1536 -> "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def sampling_params(llm: Any, **options: Any) -> Any:
    """The checkpoint's defaults, `max_tokens` as far as the context goes, and over both what the user gave.

    `do_sample: false` in generation_config.json means greedy here, as in transformers (upstream passes it over).
    """
    from mini_vllm.sampling_params import SamplingParams
    from mini_vllm.tokenizers.tokenizer_files import load_json_if_there

    folder = llm.llm_engine.folder
    config = llm.llm_engine.config.model_config
    defaults = dict(llm.llm_engine.default_sampling_params)
    if (
        config.generation_config == "auto"
        and folder
        and load_json_if_there(Path(folder) / "generation_config.json").get("do_sample") is False
    ):
        defaults["temperature"] = 0.0
    given = {name: value for name, value in options.items() if value is not None and value != []}
    merged = {"max_tokens": None, **defaults, **given}
    if given.get("temperature") == 0:
        merged = {k: v for k, v in merged.items() if k not in ("top_p", "top_k", "min_p")}
    return SamplingParams.from_dict(merged)


def has_chat_template(llm: Any) -> bool:
    """True when the loaded checkpoint brings a chat template."""
    from mini_vllm.entrypoints.chat_utils import load_chat_template

    folder = llm.llm_engine.folder
    return folder is not None and llm.llm_engine.tokenizer is not None and load_chat_template(folder) is not None
