"""Which replica has which request, and what is needed to go on with it in another when that one dies.

Upstream keeps the first half (`reqs_in_flight` of `DPLBAsyncMPClient`): there the death of one core ends the engine.

A request goes on as one that was preempted does: prompt and the tokens that it has are computed again, and the next one
is sampled. The tokens are sent as what they are, output, and not as a longer prompt. So penalties, limits, grammars and
the random stream of a seed stand where they stood. The front end keeps its own half (text, stop strings, log
probabilities, the other completions of a prompt) and does not notice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mini_vllm.engine import EngineCoreOutput, EngineCoreRequest, FinishReason

MAX_DEATHS = 2
"""Replicas that may die with a request of which they have given no token yet: then it is held to be the cause, and ends
with an error. One that they have given tokens of has been computed by them, and may lose twice as many."""


@dataclass
class _Sent:
    request: EngineCoreRequest
    rank: int
    deaths: int = 0
    silent_deaths: int = 0
    has_spoken: bool = False
    output_token_ids: list[int] = field(default_factory=list)

    def to_go_on(self) -> EngineCoreRequest:
        """The request as another replica gets it: where it was pinned, it no longer is. Log probabilities of the prompt
        come with the first token, and so have come if there is one."""
        params = self.request.sampling_params
        if self.output_token_ids and getattr(params, "prompt_logprobs", None) is not None:
            (params := params.clone()).prompt_logprobs = None
        return replace(
            self.request, sampling_params=params, output_token_ids=list(self.output_token_ids), data_parallel_rank=None
        )


class RequestsInFlight:
    """Requests that were sent and have not ended. What they have generated is what was handed on: outputs that were on
    their way when a replica died are computed again, and come once."""

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sent

    def add(self, request: EngineCoreRequest, rank: int) -> None:
        """It goes to this replica, for the first time or again."""
        before = self._sent.get(request.request_id)
        if before is None:
            self._sent[request.request_id] = _Sent(request, rank)
        else:
            before.rank, before.has_spoken = rank, False

    def note(self, rank: int, outputs: list[EngineCoreOutput]) -> list[EngineCoreOutput]:
        """What a replica said of requests, less those that are in another one by now."""
        found = []
        for output in outputs:
            sent = self._sent.get(output.request_id)
            if sent is not None and sent.rank != rank:
                continue
            found.append(output)
            if sent is not None:
                sent.output_token_ids += output.new_token_ids
                sent.has_spoken = sent.has_spoken or bool(output.new_token_ids)
                if output.finished:
                    del self._sent[output.request_id]
        return found

    def forget(self, request_ids: list[str]) -> dict[int, list[str]]:
        """They were aborted: by replica."""
        found: dict[int, list[str]] = {}
        for request_id in request_ids:
            sent = self._sent.pop(request_id, None)
            if sent is not None:
                found.setdefault(sent.rank, []).append(request_id)
        return found

    def num_in(self, rank: int) -> int:
        """Requests that this replica has."""
        return sum(sent.rank == rank for sent in self._sent.values())

    def hand_over(self, rank: int) -> list[EngineCoreRequest]:
        """A replica leaves: its requests, to be sent again. None of them is held to be a cause of anything."""
        return [sent.to_go_on() for sent in self._sent.values() if sent.rank == rank]

    def take_from(self, rank: int) -> tuple[list[EngineCoreRequest], list[EngineCoreOutput]]:
        """A replica is gone: its requests, to be sent again in the order in which they came, and the last outputs of
        those that have met too many deaths."""
        moved, given_up = [], []
        for request_id, sent in list(self._sent.items()):
            if sent.rank != rank:
                continue
            sent.deaths += 1
            sent.silent_deaths += not sent.has_spoken
            if sent.silent_deaths < MAX_DEATHS and sent.deaths < 2 * MAX_DEATHS:
                moved.append(sent.to_go_on())
                continue
            del self._sent[request_id]
            said = f"{sent.deaths} replicas died while this request was in them"
            given_up.append(EngineCoreOutput(request_id, [], None, FinishReason.ERROR, said))
        return moved, given_up
