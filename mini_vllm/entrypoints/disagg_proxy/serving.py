"""A request's way through the pair: the prompt to a prefill engine, then the request to a decode engine.

    client ── request ──▶ proxy ── the prompt, max_tokens=1, do_remote_decode ──▶ P     computes keys and values
                            ◀───────────────── kv_transfer_params ────────────────      and keeps them
                          proxy ── the request, kv_transfer_params ──▶ D                fetches them from P, and goes on
    client ◀───────────── the answer, or its stream ──────────────────

Upstream: upstream/tests/v1/kv_connector/nixl_integration/toy_proxy_server.py:219 — `_handle_completions`, which has one
way, and an exception for whatever goes wrong on it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from mini_vllm.entrypoints.disagg_proxy.exchange import DONE, Answer, Exchange, InstanceError, error_answer
from mini_vllm.entrypoints.disagg_proxy.instances import Instance, Instances
from mini_vllm.logger import init_logger

logger = init_logger(__name__)
PREFILL_FAILURE_POLICIES = ("recompute", "fail")
REMOTE_DECODE = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip
NOT_FOR_PREFILL = ("stream_options", "min_tokens", "min_completion_tokens")


@dataclass(frozen=True)
class ProxyPolicy:
    """What the proxy does where an engine fails.

    Attributes:
        max_attempts: engines of a kind that are asked for one request.
        prefill_failure_policy: where no prefill engine could do it. "recompute": the decode engine computes the prompt
            itself. "fail": an error.
        prefill_timeout_s, decode_timeout_s: the longest silence of an engine; of an answer that is no stream, all of
            its time.
        min_prompt_chars: a shorter prompt is not worth the way; the decode engine computes it.
    """

    max_attempts: int = 2
    prefill_failure_policy: str = "recompute"
    prefill_timeout_s: float = 600.0
    decode_timeout_s: float = 600.0
    min_prompt_chars: int = 0


class DisaggProxy:
    """Answers completions and chats.

    Attributes:
        ways: requests by the way that they took: "disaggregated", "decode_alone" (of their own kind),
            "recomputed" (no prefill engine could), "failed".
    """

    def __init__(self, prefill: Instances, decode: Instances, policy: ProxyPolicy) -> None:
        self.prefill, self.decode, self.policy = prefill, decode, policy
        self.ways: Counter[str] = Counter()

    async def answer(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> Answer | EngineStream:
        """The answer of a decode engine, whole or as a stream; or an error that names who failed, and how."""
        params: dict[str, Any] | None = None
        way = "decode_alone" if goes_alone(body, self.policy.min_prompt_chars) else "disaggregated"
        if way == "disaggregated":
            try:
                answer = await self._prefill(path, prefill_body(body), headers)
            except InstanceError as error:
                if self.policy.prefill_failure_policy == "fail":
                    return self._counted("failed", error.as_answer())
                logger.warning("%s; the prompt is computed again", error)
                way = "recomputed"
            else:
                if answer.status != HTTPStatus.OK:  # it is about the request
                    return self._counted("failed", answer)
                params = json.loads(answer.content).get("kv_transfer_params")
        try:
            return self._counted(way, await self._decode(path, body, params, headers))
        except InstanceError as error:
            return self._counted("failed", error.as_answer())

    def _counted(self, way: str, answer: Any) -> Any:
        self.ways[way] += 1
        return answer

    async def _prefill(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        """What a prefill engine says; raises what the last one did wrong."""
        content, tried = json.dumps(body).encode(), set[Instance]()
        failure: InstanceError = nobody(self.prefill)
        while len(tried) < self.policy.max_attempts and (instance := self.prefill.choose(tried)) is not None:
            tried.add(instance)
            try:
                answer = await Exchange(instance, path, content, headers, self.policy.prefill_timeout_s).whole()
                check_prefill_answer(instance, answer)
                return answer
            except InstanceError as error:
                failure = error
        raise failure

    async def _decode(
        self, path: str, body: dict[str, Any], params: dict[str, Any] | None, headers: Mapping[str, str]
    ) -> Answer | EngineStream:
        """What a decode engine says; raises what the last one did wrong.

        Keys and values can be fetched once. So an engine that comes after one which may have fetched them computes the
        prompt itself; where there is no other, the same one does so, as long as it lives.
        """
        failure: InstanceError = nobody(self.decode)
        tried, again = set[Instance](), None
        for _ in range(self.policy.max_attempts):
            instance = self.decode.choose(tried) or again
            if instance is None:
                break
            tried.add(instance)
            content = json.dumps(body if params is None else {**body, "kv_transfer_params": params}).encode()
            exchange = Exchange(instance, path, content, headers, self.policy.decode_timeout_s)
            try:
                return await open_stream(exchange) if body.get("stream") else await exchange.whole()
            except InstanceError as error:
                failure = error
                again = instance if params is not None and error.answer is not None else None
                params = None if error.reached else params
        raise failure


class NoInstance(InstanceError):
    """Nobody could be asked."""

    def __init__(self, said: str) -> None:
        Exception.__init__(self, said)
        self.status, self.reached, self.answer = HTTPStatus.SERVICE_UNAVAILABLE, False, None


def nobody(instances: Instances) -> NoInstance:
    """The error where no engine of a kind is left."""
    said = "; ".join(f"{each.url}: {each.why}" for each in instances.all if not each.is_up)
    return NoInstance(f"no {instances.role} engine is there ({said or 'none was named'})")


async def open_stream(exchange: Exchange) -> Answer | EngineStream:
    """The stream, once its first event is there; or what the engine said instead."""
    try:
        answer = await exchange.start()
    except BaseException:
        await exchange.close()
        raise
    return EngineStream(exchange) if answer is None else answer


class EngineStream:
    """A decode engine's events, whole ones, as they come. Where it fails in the middle, the client hears that as an
    event, and then the end; what it has got it can keep, so nobody else begins anew.

    `aclose` closes the connection, also where nobody has asked for an event yet: a generator would not.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._has_failed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._has_failed:
            raise StopAsyncIteration
        try:
            events = await self.exchange.next_events()
        except InstanceError as error:
            self._has_failed = True
            return b"data: " + error_answer(f"{error}; the answer is cut", error.status).content + b"\n\n" + DONE
        if not events:
            raise StopAsyncIteration
        return events

    async def aclose(self) -> None:
        """The client has everything, or has left."""
        await self.exchange.close()


def check_prefill_answer(instance: Instance, answer: Answer) -> None:
    """Raise InstanceError where a good answer does not have the form of one."""
    if answer.status != HTTPStatus.OK:
        return
    try:
        found = json.loads(answer.content)
        good = isinstance(found, dict) and isinstance(found.get("kv_transfer_params"), dict | None)
    except (ValueError, RecursionError):
        good = False
    if not good:
        instance.num_failures += 1
        said = f"sent what is no answer with kv_transfer_params: {answer.content[:100].decode(errors='replace')!r}"
        raise InstanceError(instance, said, HTTPStatus.BAD_GATEWAY)


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """The request for a prefill engine: the prompt, and one token, which nobody sees: a step that samples has computed
    the whole prompt."""
    made = {name: value for name, value in body.items() if name not in NOT_FOR_PREFILL}
    made.update(stream=False, max_tokens=1, kv_transfer_params=REMOTE_DECODE)
    if "max_completion_tokens" in made:
        made["max_completion_tokens"] = 1
    return made


def goes_alone(body: dict[str, Any], min_prompt_chars: int) -> bool:
    """Whether the decode engine gets the request as it is: where keys and values of one prompt, once fetched, do not
    serve (several prompts or completions, log-probabilities of the prompt), and where the way would not pay."""
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
    several |= body.get("n") not in (None, 1) or bool(body.get("use_beam_search"))
    whole = body.get("prompt_logprobs") is not None or bool(body.get("echo")) or body.get("max_tokens") == 0
    if several or whole or body.get("prompt_embeds") is not None:
        return True
    return bool(min_prompt_chars) and len(json.dumps(prompt or body.get("messages"))) < min_prompt_chars
