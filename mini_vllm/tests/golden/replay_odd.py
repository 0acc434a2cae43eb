"""Our scheduler over the workloads of `odd_workload.py`."""

from __future__ import annotations

from typing import Any

from mini_vllm.request import RequestStatus
from mini_vllm.sampling_params import RepetitionDetectionParams
from mini_vllm.tests.golden.odd_workload import OddArrival
from mini_vllm.tests.golden.replay import GroupReplay


class OddReplay(GroupReplay):
    """With the further parameters of each request."""

    def more_params(self, arrival: OddArrival) -> dict[str, Any]:
        """As `SamplingParams` takes them."""
        again = arrival.repetition
        return {**arrival.more, **({"repetition_detection": RepetitionDetectionParams(*again)} if again else {})}

    def only_new_names(self, index: int) -> int:
        """Leave out of a step's arrivals whose name is still taken, by a request or by a result on its way: the release
        gives each request a number beside its name, so that its scheduler never meets the latter. How many others have
        a name that was used."""
        taken = set(self.scheduler.requests).union(*(plan.num_scheduled_tokens for plan, _ in self.in_flight))
        fresh: list[OddArrival] = []
        for arrival in self.workload.arrivals[index]:
            if arrival.request_id not in taken:
                fresh.append(arrival)
                taken.add(arrival.request_id)
        self.workload.arrivals[index] = fresh
        return sum(arrival.request_id in self.num_sampled for arrival in fresh)

    def abort_some(self, index: int) -> list[str]:
        """Those that are aborted before this step, in one call. The release makes a set of their names, so that their
        blocks come back in the order of that; ours keep the order given, which is that of the same set."""
        names = sorted(self.scheduler.requests)[: self.workload.crowds[index]]
        self.scheduler.finish_requests(list(set(names)), RequestStatus.FINISHED_ABORTED)
        return names

    def before(self, index: int) -> None:
        """Where nobody else has done it: see the fuzzer."""
        self.only_new_names(index)
        super().before(index)
