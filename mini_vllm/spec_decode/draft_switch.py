"""Drafts only where they pay: `speculative_config={..., "disable_when_slower": True}`. Upstream has no twin.

A draft that becomes a token saves its request a step: its share of a step without drafts. A draft costs what steps with
drafts take longer, shared out among their drafts: rows to verify, and the proposer's time. Both are learnt from the
engine's own steps. So drafting pays for a request as long as

    accepted / drafted  >=  (time of a draft) / (time of a step without drafts / its requests)

The left side is the request's own, beginning with that of the traffic before it. The right side grows with the batch:
more rows cost more, and a step is shared by more requests. vLLM once had `disable_by_batch_size`, a number to guess;
the pinned release has nothing in its place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mini_vllm.core.sched.output import SchedulerOutput
from mini_vllm.outputs import ModelRunnerOutput

_FIRST_STEPS = 3
"""Steps without drafts, and then with them, before a time is believed."""
_NEW = 0.15
"""Weight of the newest time. A time is taken as three times the mean at most: the machine did something else."""
_KEEP = 0.99
"""What the traffic's acceptance keeps with each draft that is judged: it has forgotten half after 70."""
_LOOK_AGAIN = 64
"""Steps with drafts after which one without is measured again."""
_FIRST_PROBE, _LAST_PROBE = 32, 1024
"""Steps without drafts after which they are tried again; twice as many each time that they lose."""


@dataclass
class _Mean:
    value: float = 0.0
    count: int = 0

    def add(self, seconds: float) -> None:
        """Take in one more time: the mean of the first ones, then a running mean."""
        self.count += 1
        weight = max(_NEW, 1 / self.count)
        if self.count > _FIRST_STEPS:
            seconds = min(seconds, 3 * self.value)
        self.value += weight * (seconds - self.value)

    @property
    def known(self) -> bool:
        """Whether it can be believed."""
        return self.count >= _FIRST_STEPS


@dataclass
class _Acceptance:
    accepted: float = 0.0
    drafted: float = 0.0
    out: bool = False


@dataclass
class _Times:
    """Of batches of about one size: seconds of a step without drafts, and of a draft in a step with some."""

    plain: _Mean = field(default_factory=_Mean)
    draft: _Mean = field(default_factory=_Mean)
    since_plain: int = 0


class DraftSwitch:
    """Args:
        num_speculative_tokens: k.
        keeps_state: the drafter has keys and values of its own; a request for which it was not asked once has a hole
            there, and is not asked for again.
        clock: seconds.

    Attributes:
        num_asked, num_silent: requests and steps in which drafts were asked for, or not.
    """

    def __init__(
        self, num_speculative_tokens: int, keeps_state: bool, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.k, self.keeps_state, self.clock = num_speculative_tokens, keeps_state, clock
        self.num_asked = self.num_silent = 0
        self._traffic = _Acceptance(0.7 * self.k, self.k)
        self._requests: dict[str, _Acceptance] = {}
        self._times: dict[int, _Times] = {}
        self._drafts: dict[str, int] = {}
        self._start, self._is_decode, self._size = 0.0, False, 0
        self._probe_after, self._silent_steps = _FIRST_PROBE, 0

    def begin_step(self, plan: SchedulerOutput) -> None:
        """Before anything of the step is computed."""
        self._drafts = {name: len(drafts) for name, drafts in plan.scheduled_spec_decode_tokens.items()}
        self._size = len(plan.num_scheduled_tokens)
        self._is_decode = plan.total_num_scheduled_tokens == self._size + sum(self._drafts.values())
        self._start = self.clock()

    def break_even(self) -> float | None:
        """The acceptance at which drafts neither gain nor lose in a batch of this size; None while it is not known."""
        times = self._of_size()
        if not (times.plain.known and times.draft.known):
            return None
        return times.draft.value * self._size / times.plain.value

    def acceptance(self, request_id: str) -> float:
        """Of a request: accepted over drafted, with one step of the traffic's in it."""
        own, traffic = self._requests[request_id], self._traffic
        return (own.accepted + self.k * traffic.accepted / traffic.drafted) / (own.drafted + self.k)

    def choose(self, output: ModelRunnerOutput) -> ModelRunnerOutput | None:
        """Take in what became of this step's drafts; the output as the proposer shall see it, without the tokens of
        requests that shall have none, or None where nobody shall."""
        self._observe(output)
        known = set(output.req_ids)
        self._requests = {name: own for name, own in self._requests.items() if name in known}
        asked = self._asked(output.req_ids)
        self.num_asked += len(asked)
        self.num_silent += len(output.req_ids) - len(asked)
        if not asked:
            self._silent_steps += self._is_decode
            return None
        if len(asked) == len(output.req_ids):
            return output
        of_each = zip(output.req_ids, output.sampled_token_ids, strict=True)
        return replace(output, sampled_token_ids=[ids if name in asked else [] for name, ids in of_each])

    def end_step(self) -> None:
        """After the drafts of the next step are made."""
        if not self._is_decode:
            return
        seconds, times, num_drafts = self.clock() - self._start, self._of_size(), sum(self._drafts.values())
        if not num_drafts:
            times.plain.add(seconds)
            times.since_plain = 0
        elif times.plain.known:
            times.draft.add(max(0.0, seconds - times.plain.value) / num_drafts)
            times.since_plain += 1

    def _of_size(self) -> _Times:
        return self._times.setdefault(self._size.bit_length(), _Times())

    def _observe(self, output: ModelRunnerOutput) -> None:
        for name, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            drafted = self._drafts.get(name, 0)
            if not drafted or not tokens or name not in self._requests:
                continue
            keep = _KEEP**drafted
            self._traffic.accepted = keep * self._traffic.accepted + len(tokens) - 1
            self._traffic.drafted = keep * self._traffic.drafted + drafted
            self._requests[name].accepted += len(tokens) - 1
            self._requests[name].drafted += drafted

    def _asked(self, req_ids: list[str]) -> set[str]:
        """The requests for which drafts shall be made now."""
        times, break_even = self._of_size(), self.break_even()
        new = [name for name in req_ids if name not in self._requests]
        for name in new:
            self._requests[name] = _Acceptance()
        may = [name for name in req_ids if not self._requests[name].out]
        if not times.plain.known or times.since_plain >= _LOOK_AGAIN * (8 if self.keeps_state else 1):
            return self._look_at_plain_steps(new, may)
        if break_even is None:
            return set(may)
        asked = {name for name in may if self.acceptance(name) >= break_even}
        if asked:
            self._probe_after, self._silent_steps = _FIRST_PROBE, 0
        elif self._silent_steps >= self._probe_after and (candidates := new if self.keeps_state else may):
            asked = {candidates[self._silent_steps % len(candidates)]}
            self._probe_after, self._silent_steps = min(2 * self._probe_after, _LAST_PROBE), 0
        if self.keeps_state:
            for name in may:
                self._requests[name].out = name not in asked
        return asked

    def _look_at_plain_steps(self, new: list[str], may: list[str]) -> set[str]:
        """Nobody for a step; or nobody who begins now, where whoever is passed over once stays without."""
        if not self.keeps_state:
            return set()
        for name in new:
            self._requests[name].out = True
        return set(may) - set(new)
