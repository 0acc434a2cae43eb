"""What a benchmark sends: requests, where they come from, and their options.

    get_samples(args, tokenizer) -> [SampleRequest, …]

Upstream twin: `vllm/benchmarks/datasets/datasets.py`. The datasets themselves stand beside this file:
`random_dataset.py` (random, prefix_repetition), `file_datasets.py` (sharegpt, custom), `made_datasets.py`
(conversations, json).
"""

from __future__ import annotations

import argparse
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mini_vllm.logger import init_logger

logger = init_logger(__name__)

DEFAULT_NUM_PROMPTS = 1000
DATASET_NAMES = ("random", "prefix_repetition", "sharegpt", "custom", "conversations", "json")


@dataclass
class SampleRequest:
    """One request. prompt: a text, token ids, or messages; `prompt_len` counts its tokens.

    `extra_body` is what only this request sends (a schema); upstream has one for all.
    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:75 — `SampleRequest`.
    """

    prompt: Any
    prompt_len: int
    expected_output_len: int | None
    request_id: str | None = None
    extra_body: dict[str, Any] | None = None


class BenchmarkDataset(ABC):
    """A source of requests. The same seed gives the same requests.

    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:93 — `BenchmarkDataset`.
    """

    DEFAULT_SEED: ClassVar[int] = 0

    def __init__(
        self, dataset_path: str | None = None, random_seed: int | None = DEFAULT_SEED, disable_shuffle: bool = False
    ) -> None:
        self.dataset_path = dataset_path
        self.random_seed = self.DEFAULT_SEED if random_seed is None else random_seed
        self.disable_shuffle = disable_shuffle
        self.data: Any = None

    @abstractmethod
    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        request_id_prefix: str = "",
        no_oversample: bool = False,
        **kwargs: Any,
    ) -> list[SampleRequest]:
        """So many requests; `no_oversample`: rather fewer than one twice."""

    def maybe_oversample_requests(
        self, requests: list[SampleRequest], num_requests: int, request_id_prefix: str = "", no_oversample: bool = False
    ) -> None:
        """Fill up to `num_requests` with requests drawn again, under ids of their own. Raises ValueError where two ids
        are the same, or where there is nothing to draw from.

        Upstream: upstream/vllm/benchmarks/datasets/datasets.py:278 — `BenchmarkDataset.maybe_oversample_requests`.
        """
        if no_oversample:
            return
        if not requests:
            raise ValueError("the dataset has no request that can be used")
        source = random.Random(self.random_seed)
        drawn = list(requests)
        while len(drawn) < num_requests:
            name = request_id_prefix + str(len(drawn))
            drawn.append(replace(source.choice(requests), request_id=name))
        requests[:] = drawn
        ids = [request.request_id for request in requests]
        if len(ids) != len(set(ids)):
            raise ValueError(
                "Duplicate request_id found in the sampled requests. Please ensure that each request_id is unique."
            )


def add_dataset_parser(
    parser: argparse.ArgumentParser, num_prompts: int = DEFAULT_NUM_PROMPTS, seed: bool = True
) -> None:
    """Add the options of all datasets. num_prompts: the default. seed: whether `--seed` is among them.

    Lengths default to 64 and 64 (random) where upstream has 1024 and 128: pocket's context is 1,024 tokens.
    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:1402 — `add_dataset_parser`.
    """
    if seed:
        parser.add_argument("--seed", type=int, default=0, help="Of prompts, lengths and arrivals.")
    parser.add_argument("--num-prompts", type=int, default=num_prompts, help="Number of requests.")
    parser.add_argument("--dataset-name", choices=DATASET_NAMES, default="random", help="Where requests come from.")
    parser.add_argument("--dataset-path", default=None, help="The file of sharegpt (.json) or custom (.jsonl).")
    parser.add_argument("--no-oversample", action="store_true", help="Rather fewer requests than one twice.")
    parser.add_argument("--disable-shuffle", action="store_true", help="Keep the order of the file.")
    parser.add_argument("--skip-chat-template", action="store_true", help="Send custom prompts as they are.")
    options = {
        "custom-output-len": (256, "Tokens out of custom; -1: the file's output_tokens."),
        "sharegpt-output-len": (None, "Tokens out of sharegpt; by default the file's answers."),
        "random-input-len": (64, "Tokens in of random."),
        "random-output-len": (64, "Tokens out of random."),
        "random-prefix-len": (0, "Tokens that all prompts of random share, before their own."),
        "random-batch-size": (1, "Texts in one request; for embeddings only."),
        "prefix-repetition-prefix-len": (256, "Tokens in that prompts share."),
        "prefix-repetition-suffix-len": (256, "Tokens in of their own."),
        "prefix-repetition-num-prefixes": (10, "Different prefixes."),
        "prefix-repetition-output-len": (128, "Tokens out of prefix_repetition."),
        "conversations-turns": (3, "Turns of a conversation; each is a request that repeats those before it."),
        "conversations-output-len": (48, "Mean tokens out of a turn."),
        "json-output-len": (64, "Most tokens out of a request with a schema."),
    }
    for name, (default, help_text) in options.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=help_text)
    parser.add_argument("--random-range-ratio", default="0.0", help='0.3, or \'{"input": 0.3, "output": 0.5}\'.')


def get_samples(args: argparse.Namespace, tokenizer: Any) -> list[SampleRequest]:
    """The requests that the options ask for. Raises ValueError and OSError.

    Upstream: upstream/vllm/benchmarks/datasets/datasets.py:1825 — `get_samples`.
    """
    from mini_vllm.benchmarks.datasets import file_datasets, made_datasets, random_dataset

    name = args.dataset_name
    classes: dict[str, type[BenchmarkDataset]] = {
        "random": random_dataset.RandomDataset,
        "prefix_repetition": random_dataset.PrefixRepetitionRandomDataset,
        "sharegpt": file_datasets.ShareGPTDataset,
        "custom": file_datasets.CustomDataset,
        "conversations": made_datasets.ConversationsDataset,
        "json": made_datasets.JSONSchemaDataset,
    }
    if name not in classes:
        raise ValueError(f"Unknown dataset: {name}")
    if args.num_prompts < 1 and name != "custom":
        raise ValueError(f"num_prompts must be at least 1, got {args.num_prompts}")
    if args.dataset_path is not None and name not in ("sharegpt", "custom"):
        raise ValueError(f"Cannot use '{name}' dataset with --dataset-path: it is made, not read.")
    dataset = classes[name](args.dataset_path, args.seed, args.disable_shuffle)
    return dataset.sample(
        tokenizer,
        args.num_prompts,
        request_id_prefix=getattr(args, "request_id_prefix", ""),
        no_oversample=args.no_oversample,
        **_options(args, name),
    )


def _options(args: argparse.Namespace, name: str) -> dict[str, Any]:
    """The arguments of `sample` that are this dataset's own."""
    if name in ("sharegpt", "json"):
        return {"output_len": getattr(args, f"{name}_output_len")}
    if name == "custom":
        return {"output_len": args.custom_output_len, "skip_chat_template": args.skip_chat_template}
    names = {
        "random": ("prefix_len", "range_ratio", "input_len", "output_len", ("batchsize", "batch_size")),
        "prefix_repetition": ("prefix_len", "suffix_len", "num_prefixes", "output_len"),
        "conversations": ("turns", "output_len"),
    }[name]
    pairs = [(each, each) if isinstance(each, str) else each for each in names]
    found = {ours: getattr(args, f"{name}_{option}") for ours, option in pairs}
    if name == "random":
        found["as_token_ids"] = getattr(args, "random_as_token_ids", False)
    return found
