"""`mini-vllm generate --lora NAME=PATH`: which adapters answer a prompt, side by side in one batch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mini_vllm.config.lora import MAX_LORA_RANKS
from mini_vllm.lora.peft_helper import CONFIG_NAME, PEFTHelper
from mini_vllm.lora.request import LoRARequest

Loras = Annotated[
    list[str] | None,
    typer.Option("--lora", help="Answer with this adapter; several times: with each. base: with none.",
                 metavar="NAME=PATH"),
]  # fmt: skip
BASE = "base"


def parse_loras(words: list[str] | None) -> list[LoRARequest | None]:
    """`["pirate=models/pocket-lora-pirate", "base"]` -> an adapter and None; [None] where nothing is said.

    Raises:
        ValueError: a word has another form, or a name stands there twice.
    """
    found: list[LoRARequest | None] = []
    for word in words or ():
        name, equals, path = word.partition("=")
        if word == BASE:
            found.append(None)
        elif not (name and equals and path):
            raise ValueError(f"--lora must be NAME=PATH, or {BASE}, got {word!r}.")
        else:
            found.append(LoRARequest(name, len(found) + 1, path))
    names = [name_of(each) for each in found]
    if len(set(names)) < len(names):
        raise ValueError(f"--lora: each adapter stands there once, got {', '.join(map(str, names))}.")
    return found or [None]


def name_of(request: LoRARequest | None) -> str:
    """As the option says it."""
    return BASE if request is None else request.lora_name


def engine_args(loras: list[LoRARequest | None]) -> dict[str, Any]:
    """What an engine needs for them: a slot each, and their highest rank. Raises ValueError, FileNotFoundError."""
    adapters = [each for each in loras if each is not None]
    if not adapters:
        return {}
    rank = max(PEFTHelper.from_local_dir(each.lora_path).r for each in adapters)
    fits = next((allowed for allowed in MAX_LORA_RANKS if allowed >= rank), None)
    if fits is None:
        raise ValueError(f"--lora: the rank in {CONFIG_NAME} must be at most {MAX_LORA_RANKS[-1]}, got {rank}.")
    return {"enable_lora": True, "max_loras": len(adapters), "max_lora_rank": fits}
