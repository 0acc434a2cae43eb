"""Lab 17-02: a real backend, read from three sides.

What it says about itself (its class, in the pinned source), what it does to an engine (a capture of the configuration,
before and after), and what it can reach (its memory, in bytes and in bytes a second).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Overrides:
    """A platform's class against its base: names of methods and attributes. Given.

    answered: the base has the name, and this class gives an answer of its own. added: the base does not have it.
    inherited: the base's answer stands.
    """

    answered: frozenset[str]
    added: frozenset[str]
    inherited: frozenset[str]


def predicted_start() -> tuple[int, str]:
    """Your prediction, before any code runs, about two of the starts that the README describes.

    Returns:
        How many KV blocks the `rate` start in float32 has. And which share of the questions of the `questions` start is
        answered by the CPU's own class, and not by its base: "a fiftieth", "a half" or "nine tenths", whichever is
        nearest. Each question counts as often as it was asked.
    """
    raise NotImplementedError("a number of blocks and a share, before any code runs")


def cpu_kv_blocks(space_gib: int, block_size: int, kv_bytes_per_token: int) -> int:
    """KV blocks in a budget of host memory.

    Args:
        space_gib: GiB, as VLLM_CPU_KVCACHE_SPACE says. block_size: tokens. kv_bytes_per_token: in all layers.

    Raises:
        ValueError: "space_gib must be at least 1, got 0", and so for the other two.
    """
    raise NotImplementedError("whole blocks, and no more than fit")


def decode_ceiling_tok_s(
    bandwidth_gb_s: float, weight_gb: float, batch: int = 1, kv_gb_per_request: float = 0.0
) -> float:
    """Output tokens a second that memory allows, whatever the processor: in a step of one token for each of `batch`
    requests all weights are read once, and each request's own keys and values.

    Args:
        bandwidth_gb_s, weight_gb, kv_gb_per_request: GB are 10**9 bytes.

    Raises:
        ValueError: "bandwidth_gb_s must be positive, got 0", and so for weight_gb; "batch must be at least 1, got 0";
            "kv_gb_per_request must be at least 0, got -1".
    """
    raise NotImplementedError("tokens a second that no step can exceed")


def share_of_ceiling(measured_tok_s: float, ceiling_tok_s: float) -> float:
    """What was reached, of what can be reached.

    Raises:
        ValueError: "measured 60 tokens a second above the ceiling of 50: one of the two is wrong"; both as `:g` prints
            them.
    """
    raise NotImplementedError("a share between 0 and 1, or the news that somebody has measured nonsense")


def overrides(source: str, class_name: str, base_source: str, base_name: str) -> Overrides:
    """What a class says that its base does not.

    Both are read, never run: the machine need not have what they import. A name counts where the body of the class
    itself binds or declares it: a method, a property, `x = 1`, `x = y = 1`, `x: int = 1`, `x: int`; no other statement,
    `x, y = 1, 2` among them, counts. A declaration without a value is no answer: in the class it counts as nothing, in
    the base it is a name like the others. What stands inside a method or in another class does not count.

    Args:
        source, base_source: Python files; the two may be the same text.

    Raises:
        ValueError: "no class 'CpuPlatform' in this source".
    """
    raise NotImplementedError("three sets of names: answered, added, inherited")


def asked_by_name(source: str, class_name: str) -> frozenset[str]:
    """Methods and properties whose answer depends on who the platform is: those that read `_enum` of `self` or `cls`,
    and those that use another such method or property of `self` or `cls`, over any number of steps.

    Raises:
        ValueError: "no class 'Platform' in this source".
    """
    raise NotImplementedError("the names whose answers follow from a name")


def share_by_name(questions: Sequence[Mapping[str, Any]], by_name: frozenset[str]) -> float:
    """Of all questions that were asked, the share of those whose name is in `by_name`.

    Args:
        questions: rows of captured/questions.json; "asked" says how often.

    Raises:
        ValueError: "no question was asked".
    """
    raise NotImplementedError("a share of the questions, each as often as it was asked")


def rewritten(config: Sequence[Sequence[str]]) -> dict[str, dict[str, tuple[str, str]]]:
    """What the platform has changed, by the part of the engine that it concerns.

    Args:
        config: rows of captured/config.json, [name, before, after], where a name is "part.field" and the field may have
            dots of its own.

    Returns:
        part -> field -> (before, after), without rows whose two sides are equal.

    Raises:
        ValueError: "'seed' names no part"; "'cache_config.block_size' stands there twice".
    """
    raise NotImplementedError("the changes, part by part")
