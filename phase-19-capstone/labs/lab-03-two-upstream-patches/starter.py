"""Lab 19-03: two patches of the pinned release, and the words to send them with.

Twins: `upstream/vllm/v1/core/sched/scheduler.py`, whose priority branch both patches mend.
"""

from __future__ import annotations


def predicted_hits() -> dict[str, int]:
    """With how many tokens `low` resumes after each of four patches against defect B, predicted from the code.

    The keys are "right", "forgets the whole table", "one block too late" and "counts the lost share": the last two
    forget from one block behind the first unwritten one, and as if the lost share had been computed.
    """
    raise NotImplementedError("write down the four numbers before you run anything")


def patch_a() -> str:
    """The text of a diff against defect A, the missed turn, with its regression test; `git apply` takes it.

    It touches `vllm/v1/core/sched/scheduler.py` in at most 40 lines, and one file below `tests/`.
    """
    raise NotImplementedError("return the text of your diff against defect A")


def patch_b() -> str:
    """The text of a diff against defect B, found before it is written; bounds as for `patch_a`."""
    raise NotImplementedError("return the text of your diff against defect B")


def pull_request() -> str:
    """The description of both as one pull request, by upstream's template, with answers to a reviewer's questions."""
    raise NotImplementedError("return the text of your pull request")
