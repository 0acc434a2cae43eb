"""Records what the real server of vLLM v0.22.1 answers with pocket's adapters, for `test_lora_server.py` to replay.

Run where the real release is installed (`course vllm`), from the root of the repository:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_lora_server.py

The release's CPU build asks for pinned memory wherever adapters are mapped, which needs a GPU's driver; `PATCH` makes
each of its processes copy without.
"""

import os
import tempfile
from pathlib import Path

from mini_vllm.tests.golden import record_server
from mini_vllm.tests.golden.lora_cases import ARGS, CASES
from mini_vllm.tests.golden.packed import write_packed
from mini_vllm.tests.golden.server_play import play

PATCH = """
try:
    import vllm.utils.torch_utils as found
    found.async_tensor_h2d.__defaults__ = (False,)
except ImportError:
    pass
"""
UPDATING = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


def record():
    with record_server.served(ARGS, 8795) as client:
        return {case["name"]: play(client, case) for case in CASES}


def main():
    os.environ.update(UPDATING)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(PATCH, encoding="utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        answers = record()
    about = record_server.provenance() | {
        "recorder": "mini_vllm/tests/golden/record_lora_server.py",
        "cases sha256": record_server.digest(CASES),
    }
    size = write_packed(record_server.HERE / "lora-server.json.xz", {"provenance": about, "answers": answers})
    print(f"{len(CASES)} cases, {size} bytes")


if __name__ == "__main__":
    main()
