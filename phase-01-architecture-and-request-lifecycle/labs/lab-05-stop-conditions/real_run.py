"""Asks real vLLM 0.22.1 when a request has ended, and writes its verdicts to FOLDER/result.json. No GPU, no model.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model none --out FOLDER

`check_stop`, `Request` and `SamplingParams` are the release's own. Given material: nothing to edit here.
"""

import os
import sys
from pathlib import Path

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.request import Request, RequestStatus

from course.captures import answer

EOS = 256
CASES = {  # name: (tokens in the prompt, outputs, size of the context, sampling parameters)
    "a token like any other": (3, [10, 20], 100, {"max_tokens": 10}),
    "the end token": (3, [10, 20, EOS], 100, {"max_tokens": 10}),
    "the end token, two outputs ago": (3, [EOS, 10, 20], 100, {"max_tokens": 10}),
    "as many outputs as asked for": (3, [10, 11, 12, 13], 100, {"max_tokens": 4}),
    "the end token as the last that was asked for": (3, [10, 20, EOS], 100, {"max_tokens": 3}),
    "a stop id": (3, [1, 2, 43], 100, {"max_tokens": 10, "stop_token_ids": [42, 43]}),
    "a stop id as the last that was asked for": (3, [1, 43], 100, {"max_tokens": 2, "stop_token_ids": [42, 43]}),
    "the end token, listed as a stop id too": (3, [1, EOS], 100, {"max_tokens": 10, "stop_token_ids": [EOS]}),
    "the end token, ignored": (3, [1, EOS], 100, {"max_tokens": 10, "ignore_eos": True}),
    "the end token, ignored and listed as a stop id": (
        3, [1, EOS], 100, {"max_tokens": 10, "ignore_eos": True, "stop_token_ids": [EOS]},
    ),
    "the end token before the minimum": (3, [1, EOS], 100, {"max_tokens": 10, "min_tokens": 3}),
    "a stop id before the minimum": (3, [1, 43], 100, {"max_tokens": 10, "min_tokens": 3, "stop_token_ids": [43]}),
    "the end token at the minimum": (3, [1, 2, EOS], 100, {"max_tokens": 10, "min_tokens": 3}),
    "minimum and maximum are one": (3, [1, 2, 3, 4], 100, {"max_tokens": 4, "min_tokens": 4}),
    "one place left in the context": (6, [7, 7, 7], 10, {"max_tokens": 50}),
    "a full context": (6, [7, 7, 7, 7], 10, {"max_tokens": 50}),
    "a full context, and the end token": (6, [7, 7, 7, EOS], 10, {"max_tokens": 50}),
    "a full context, and a stop id": (6, [7, 7, 7, 43], 10, {"max_tokens": 50, "stop_token_ids": [43]}),
    "four outputs where at least fifty were asked for": (6, [7, 7, 7, 7], 10, {"max_tokens": 60, "min_tokens": 50}),
    "the end token where at least fifty outputs were asked for": (
        6, [7, 7, 7, EOS], 10, {"max_tokens": 60, "min_tokens": 50},
    ),
    "four outputs where at least four were asked for": (6, [7, 7, 7, 7], 10, {"max_tokens": 60, "min_tokens": 4}),
}  # fmt: skip


def judge(name, prompt, outputs, max_model_len, params):
    """What the release's own `check_stop` says of a request whose last output was just appended."""
    sampling = SamplingParams(**params)
    sampling.update_from_generation_config({}, EOS)
    request = Request("r", list(range(1, prompt + 1)), sampling, None)
    request.status = RequestStatus.RUNNING
    request.append_output_token_ids(outputs)
    ended = check_stop(request, max_model_len)
    asked = {"name": name, "prompt": prompt, "outputs": outputs, "max_model_len": max_model_len, "params": params}
    return {**asked, "ended": ended, "status": request.status.name, "stop_reason": request.stop_reason}


def ask():
    """All that the tests compare."""
    return {"eos_token_id": EOS, "verdicts": [judge(name, *case) for name, case in CASES.items()]}


if __name__ == "__main__":
    answer(__doc__, ask)
