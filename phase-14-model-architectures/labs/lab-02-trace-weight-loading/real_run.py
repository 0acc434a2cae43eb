"""Loads a checkpoint with real vLLM 0.22.1 and writes down which tensor filled which rows. Given: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --arm whole

Nothing is believed, everything is seen: all parameters are filled with NaN before the loader starts, and after each
tensor of the checkpoint we look which rows are NaN no longer. What is NaN at the end was never loaded.

Arms, each a copy of the checkpoint with one change
    whole      no change
    reversed   the loader gets the tensors in reversed order
    no_q       q_proj of layer 3 is missing
    no_norm    input_layernorm of layer 3 is missing
    extra      layer 3 has a tensor more, self_attn.q_norm.weight
    narrow     k_proj of layer 3 has half of its rows
    wide       k_proj and v_proj of every layer have a head for each query head, as a checkpoint of multi-head
               attention would: each KV head is written as often as it is shared, so that the function is the same
    swapped    k_proj and v_proj of layer 3 have changed names
    dummy      no change, but load_format="dummy"

Where the engine starts, it answers eleven questions, greedy, rows that nobody loaded set to 0.
Figures go to FOLDER/result.json.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # read on a GPU only
}
ARMS = ("whole", "reversed", "no_q", "no_norm", "extra", "narrow", "wide", "swapped", "dummy")
LAYER = "model.layers.3."
TERMS = ("a KV block", "a block table", "prefill", "decode", "attention", "a token", "preemption", "a logit")
QUESTIONS = (*(f"What is {term}?" for term in TERMS), "Tell me a joke.", "What is 3 + 4?", "Who are you?")


def changed(tensors, arm, config):
    """The checkpoint's tensors, name -> tensor, as the arm has them."""
    found = dict(tensors)
    attention = LAYER + "self_attn."
    if arm == "no_q":
        del found[attention + "q_proj.weight"]
    elif arm == "no_norm":
        del found[LAYER + "input_layernorm.weight"]
    elif arm == "extra":
        found[attention + "q_norm.weight"] = found[LAYER + "input_layernorm.weight"][: config["head_dim"]].clone()
    elif arm == "narrow":
        name = attention + "k_proj.weight"
        found[name] = found[name][: len(found[name]) // 2].clone()
    elif arm == "wide":
        shared, dim = config["num_attention_heads"] // config["num_key_value_heads"], config["head_dim"]
        for name, tensor in tensors.items():
            if ".k_proj." in name or ".v_proj." in name:
                heads = tensor.reshape(-1, dim, tensor.shape[1])
                found[name] = heads.repeat_interleave(shared, 0).reshape(-1, tensor.shape[1]).contiguous()
    elif arm == "swapped":
        names = [attention + "k_proj.weight", attention + "v_proj.weight"]
        found.update(zip(names, [tensors[names[1]], tensors[names[0]]], strict=True))
    return found


def write_checkpoint(model: Path, folder: Path, arm: str) -> dict:
    """A copy of the checkpoint with the arm's change; name -> shape of all its tensors, sorted."""
    from safetensors.torch import load_file, save_file

    tensors = {}
    for file in sorted(model.iterdir()):
        if file.suffix == ".safetensors":
            tensors.update(load_file(file))
        elif file.is_file() and "index" not in file.name:
            shutil.copy(file, folder)
    tensors = changed(tensors, arm, json.loads((model / "config.json").read_text(encoding="utf-8")))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return {name: list(tensors[name].shape) for name in sorted(tensors)}


class Watcher:
    """Sits between the files and the model, and looks at the parameters between two tensors."""

    def __init__(self, model, is_reversed):
        self.parameters, self.is_reversed, self.rows = dict(model.named_parameters()), is_reversed, []
        for parameter in self.parameters.values():
            parameter.data.fill_(float("nan"))
        self.empty = {name: self._empty(p) for name, p in self.parameters.items()}

    @staticmethod
    def _empty(parameter):
        data = parameter.data
        return data.isnan().reshape(len(data), -1).any(1).cpu()

    def watch(self, weights):
        """Hand on (name, tensor) one after the other; note what each one filled."""
        for name, tensor in reversed(list(weights)) if self.is_reversed else weights:
            yield name, tensor
            self._look(name, tensor)

    def _look(self, tensor_name, tensor):
        for name, parameter in self.parameters.items():
            now = self._empty(parameter)
            filled = (self.empty[name] & ~now).nonzero().flatten().tolist()
            self.empty[name] = now
            if filled:
                first, last = filled[0], filled[-1] + 1
                here, there = parameter.data[first:last], tensor[: last - first].to(parameter.data)
                self.rows.append({
                    "tensor": tensor_name, "tensor_shape": list(tensor.shape), "parameter": name,
                    "rows": [first, last], "equal": here.shape == there.shape and bool((here == there).all()),
                })  # fmt: skip

    def unfilled(self):
        """[name, first, last] of each run of rows that nobody loaded."""
        found = []
        for name, empty in self.empty.items():
            for row in empty.nonzero().flatten().tolist():
                if found and found[-1][0] == name and found[-1][2] == row:
                    found[-1][2] = row + 1
                else:
                    found.append([name, row, row + 1])
        return found


def install(arm, seen):
    """Wrap the loader; `seen` gets what was found."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
    from vllm.model_executor.models.llama import LlamaForCausalLM

    load, get_all, model_load = (
        DefaultModelLoader.load_weights, DefaultModelLoader.get_all_weights, LlamaForCausalLM.load_weights,
    )  # fmt: skip

    def load_weights(self, model, model_config):
        seen["watcher"] = watcher = Watcher(model, arm == "reversed")
        seen["parameters"] = {name: list(p.shape) for name, p in watcher.parameters.items()}
        load(self, model, model_config)
        for parameter in watcher.parameters.values():
            parameter.data.nan_to_num_(0.0)

    def get_all_weights(self, model_config, model):
        return seen["watcher"].watch(get_all(self, model_config, model))

    def count(self, weights):
        seen["calls"] = seen.get("calls", 0) + 1
        return model_load(self, weights)

    DefaultModelLoader.load_weights, DefaultModelLoader.get_all_weights = load_weights, get_all_weights
    LlamaForCausalLM.load_weights = count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="checkpoint folder, of the Llama family")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=ARMS, default="whole")
    parser.add_argument("--dtype", default="float32", help="float16 on a GPU")
    args = parser.parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    from vllm import LLM, SamplingParams, __version__
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    seen: dict = {}
    install(args.arm, seen)
    options = {"dtype": args.dtype, "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 8, "seed": 0}
    if args.arm == "dummy":
        options["load_format"] = "dummy"
    error, texts = None, []
    with tempfile.TemporaryDirectory() as folder:
        tensors = write_checkpoint(args.model, Path(folder), args.arm)
        try:
            llm = LLM(model=folder, distributed_executor_backend=UniProcExecutor, **options)
        except Exception as raised:  # whatever the loader says is what we are here for
            error = f"{type(raised).__name__}: {raised}".replace(folder, "FOLDER")[:300]
        else:
            chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
            outputs = llm.chat(chats, SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)
            texts = [output.outputs[0].text for output in outputs]
    watcher = seen.get("watcher")
    result = {
        "vllm": __version__, "arm": args.arm, "options": options, "calls": seen.get("calls", 0), "error": error,
        "texts": texts, "tensors": tensors, "parameters": seen.get("parameters", {}),
        "trace": watcher.rows if watcher else [], "unfilled": watcher.unfilled() if watcher and not error else None,
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
