"""A prefiller in a process of its own: `python -m …prefiller EXTRA_CONFIG`. A line of its input is a list of prompts; a
line of its output is what it says of each to whoever goes on with it. An empty list waits until nothing is held."""

import json
import os
import select
import sys
import time

from mini_vllm.tests.distributed.kv_transfer.nixl.pair import be_patient, drain, make, prefill


def main(extra):
    be_patient(None)
    llm = make("kv_producer", extra=json.loads(extra))
    core = llm.llm_engine.engine_core
    print(json.dumps({"pid": os.getpid()}), flush=True)
    while True:
        if core.has_requests():
            core.step_fn()
        else:
            time.sleep(0.01)
        if not select.select([sys.stdin], [], [], 0)[0]:
            continue
        line = sys.stdin.readline()
        if not line:
            break
        prompts = json.loads(line)
        print(json.dumps(prefill(llm, prompts) if prompts else drain(llm)), flush=True)
    llm.llm_engine.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
