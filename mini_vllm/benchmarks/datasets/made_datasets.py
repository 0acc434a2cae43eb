"""Requests that are made here: conversations of several turns, and answers that must fit a schema.

Upstream has no twin. It reads conversations from the network, and its schemas stand in a script of their own,
upstream/benchmarks/benchmark_serving_structured_output.py:115 — `sample_requests`.
"""

from __future__ import annotations

import json
import random
from typing import Any

from mini_vllm.benchmarks.datasets.datasets import BenchmarkDataset, SampleRequest

_SUBJECTS = ("The scheduler", "A block", "The cache", "A request", "The model", "The sampler", "A token", "The queue")
_VERBS = ("keeps", "moves", "counts", "shares", "frees", "reads", "fills", "waits for")
_OBJECTS = ("the next step", "its prefix", "one more page", "the oldest key", "a batch", "the last answer", "its turn")
_ENDS = ("at once", "in order", "when memory is short", "for every layer", "before it stops", "after the prompt")
_QUESTIONS = ("Why is that so?", "What happens then?", "Say it in other words.", "How many are there?", "And after?")


class ConversationsDataset(BenchmarkDataset):
    """Conversations whose turns grow: turn k repeats all before it and adds a question, so that a prefix cache has
    something to find. First turns of all come first, then second ones.

    The answers that a later turn repeats are made up here, not the server's: a cache finds the earlier prompts, and
    not what was generated after them.
    """

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        request_id_prefix: str = "",
        no_oversample: bool = False,
        turns: int = 3,
        output_len: int = 48,
        **kwargs: Any,
    ) -> list[SampleRequest]:
        """Lengths of answers spread around `output_len` as those of people do: many short, few long (a log-normal with
        a deviation of 0.5, at most four times the mean). Raises ValueError for turns or lengths below 1.
        """
        if turns < 1 or output_len < 1:
            raise ValueError(f"turns and output_len must be at least 1, got {turns} and {output_len}")
        chance = random.Random(self.random_seed)
        rounds: list[list[SampleRequest]] = [[] for _ in range(turns)]
        for _ in range(-(-num_requests // turns)):
            text = ""
            for turn in range(turns):
                text += f"User: {_sentences(chance, 1 + turn % 2)} {chance.choice(_QUESTIONS)}\nAssistant:"
                wanted = min(max(1, round(output_len * chance.lognormvariate(-0.125, 0.5))), 4 * output_len)
                rounds[turn].append(SampleRequest(text, len(tokenizer.encode(text)), wanted))
                text += f" {_sentences(chance, 2)}\n"
        requests = [request for round_ in rounds for request in round_][:num_requests]
        for i, request in enumerate(requests):
            request.request_id = request_id_prefix + str(i)
        return requests


class JSONSchemaDataset(BenchmarkDataset):
    """Questions whose answer is an object of two to four fields; each request brings its schema.

    `extra_body` has it under `structured_outputs`, as vLLM's server takes it in every API.
    """

    FIELDS = ("blocks", "tokens", "layers", "cached", "finished", "reason")

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        request_id_prefix: str = "",
        no_oversample: bool = False,
        output_len: int = 64,
        **kwargs: Any,
    ) -> list[SampleRequest]:
        """output_len: the most tokens; an answer ends earlier where its object does."""
        chance = random.Random(self.random_seed)
        requests = []
        for i in range(num_requests):
            schema = self._schema(chance)
            names = ", ".join(schema["properties"])
            text = f"{_sentences(chance, 2)} Answer with a JSON object that has {names}.\n"
            body = {"structured_outputs": {"json": schema}}
            requests.append(
                SampleRequest(text, len(tokenizer.encode(text)), output_len, request_id_prefix + str(i), body)
            )
        return requests

    def _schema(self, chance: random.Random) -> dict[str, Any]:
        kinds: tuple[dict[str, Any], ...] = (
            {"type": "integer", "minimum": 0, "maximum": 999},
            {"type": "boolean"},
            {"enum": ["stop", "length", "abort"]},
        )
        names = chance.sample(self.FIELDS, chance.randint(2, 4))
        properties = {name: json.loads(json.dumps(chance.choice(kinds))) for name in names}
        return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _sentences(chance: random.Random, count: int) -> str:
    parts = (_SUBJECTS, _VERBS, _OBJECTS, _ENDS)
    return " ".join(" ".join(chance.choice(part) for part in parts) + "." for _ in range(count))
