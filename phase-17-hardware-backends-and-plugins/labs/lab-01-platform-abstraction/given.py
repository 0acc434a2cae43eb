"""Given: machines for `predicted_verdicts`, as real vLLM would find them.

`built_in`: platforms of vLLM's own list whose device is here. `plugins`: packages from outside, by name, and whether
their device is here. `allow`: what VLLM_PLUGINS says, None where it is not set. All of them were put before the pinned
release: captured/resolve.json has its verdicts, and real_run.py is how.
"""

from __future__ import annotations

from typing import Any

MACHINES: dict[str, dict[str, Any]] = {
    "a GPU": {"built_in": ["cuda"], "plugins": {}, "allow": None},
    "a GPU, and a build for processors": {"built_in": ["cuda", "cpu"], "plugins": {}, "allow": None},
    "nothing": {"built_in": [], "plugins": {}, "allow": None},
    "a GPU and a plug-in": {"built_in": ["cuda"], "plugins": {"acc": True}, "allow": None},
    "two kinds of GPU": {"built_in": ["cuda", "rocm"], "plugins": {}, "allow": None},
    "two kinds of GPU and a plug-in": {"built_in": ["cuda", "rocm"], "plugins": {"acc": True}, "allow": None},
    "two plug-ins": {"built_in": ["cpu"], "plugins": {"acc": True, "bcc": True}, "allow": None},
    "two plug-ins, one device": {"built_in": ["cpu"], "plugins": {"acc": False, "bcc": True}, "allow": None},
    "two plug-ins, one allowed": {"built_in": ["cpu"], "plugins": {"acc": True, "bcc": True}, "allow": "acc"},
    "a plug-in, none allowed": {"built_in": ["cuda"], "plugins": {"acc": True}, "allow": ""},
    "a GPU, only cpu allowed": {"built_in": ["cuda"], "plugins": {}, "allow": "cpu"},
}
