"""Asks real vLLM 0.22.1 which replica gets a request, and writes its choices to FOLDER/result.json. No GPU, no model.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model none --out FOLDER

`DPLBAsyncMPClient.get_core_engine_for_request` is the release's own; the client around it has its fields and no
sockets. Given material: nothing to edit here.
"""

import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"})
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from vllm.v1.engine.core_client import DPLBAsyncMPClient

from course.captures import answer


def episode(seed):
    """Statistics that arrive now and then, and the replicas that were chosen in between."""
    chance = random.Random(seed)
    replicas, clients = chance.randint(2, 8), chance.randint(1, 4)
    index = chance.randrange(clients)
    client = SimpleNamespace(
        lb_engines=[[0, 0] for _ in range(replicas)], client_count=clients, core_engines=list(range(replicas)),
        eng_start_index=replicas * index // clients, reqs_in_flight={},
    )  # fmt: skip
    rounds = []
    for number in range(4):
        counts = [[chance.choice((0, 0, 0, 1, 2, 7)), chance.choice((0, 1, 3, 4, 5, 12))] for _ in range(replicas)]
        if number:
            client.lb_engines = [list(pair) for pair in counts]
        else:
            counts = None  # before the first statistics
        routes = []
        for request in range(chance.randint(1, 9)):
            asked = SimpleNamespace(data_parallel_rank=None, pooling_params=None, request_id=str(request))
            routes.append(DPLBAsyncMPClient.get_core_engine_for_request(client, asked))
        rounds.append({"counts": counts, "routes": routes})
    return {"replicas": replicas, "client_index": index, "client_count": clients, "rounds": rounds}


if __name__ == "__main__":
    answer(__doc__, lambda: {"episodes": [episode(seed) for seed in range(40)]})
