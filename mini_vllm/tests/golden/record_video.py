"""Records what real vLLM 0.22.1, and transformers' video processor under it, make of films: which frames are chosen,
positions of three parts, pixels; which rank takes which item; and what the caches of both sides of the socket send.

Run from the repository root under the CPU build of the pinned release (`course vllm`):

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_video.py
"""

from __future__ import annotations

import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mini_vllm.tests.golden.packed import write_packed

FILE = Path(__file__).resolve().parent / "video.json.xz"
STD, MEAN = [0.26862954, 0.26130258, 0.27577711], [0.48145466, 0.4578275, 0.40821073]
FILMS = [(3, 21, 30), (4, 40, 17), (1, 9, 9)]
SIZES = {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 256, "longest_edge": 640}}


def film(index: int) -> np.ndarray:
    """Frames, height, width as `FILMS` says, uint8."""
    t, h, w = FILMS[index]
    rng = np.random.default_rng(index)
    coarse = rng.integers(0, 256, (t, h // 3 + 1, w // 3 + 1, 3))
    return np.repeat(np.repeat(coarse, 3, 1), 3, 2)[:, :h, :w].astype(np.uint8)


def record_sampling() -> list[Any]:
    """[[source, target], uniform, dynamic]."""
    from vllm.multimodal.video import DynamicVideoBackend, VideoBackend, VideoSourceMetadata, VideoTargetMetadata

    rng, found = np.random.default_rng(0), []
    for _ in range(150):
        total, fps = int(rng.integers(1, 200)), float(rng.choice([0.5, 1, 7.5, 24, 30, 29.97]))
        source = VideoSourceMetadata(total, fps, total / fps)
        target = VideoTargetMetadata(
            int(rng.choice([-1, 1, 2, 8, 32])), float(rng.choice([0.25, 1, 2, 12.5])), float(rng.choice([0.5, 3, 300]))
        )
        plain = target._replace(fps=float(rng.choice([-1, target.fps])))
        found.append([
            [list(source), list(target), plain.fps],
            VideoBackend.compute_frames_index_to_sample(source, plain),
            DynamicVideoBackend.compute_frames_index_to_sample(source, target),
        ])  # fmt: skip
    return found


def record_positions() -> list[Any]:
    """[number of tokens, [[modality, offset, grid], …], positions, delta]; grids in patches, two a square's side."""
    import torch
    from vllm.model_executor.models.qwen2_vl import Qwen2VLForConditionalGeneration as Real

    rng, found = np.random.default_rng(1), []
    model = SimpleNamespace(config=SimpleNamespace(vision_config=SimpleNamespace(spatial_merge_size=2)))
    model.iter_mm_grid_thw = lambda features: Real.iter_mm_grid_thw(model, features)
    for count in (1, 1, 2, 3, 4):
        at, items, features = 0, [], []
        for _ in range(count):
            at += int(rng.integers(0, 4))
            modality = str(rng.choice(["image", "video", "video"]))
            t = 1 if modality == "image" else int(rng.integers(1, 6))
            h, w = (2 * int(side) for side in rng.integers(1, 4, 2))
            items.append([modality, at, [t, h, w]])
            data = {f"{modality}_grid_thw": SimpleNamespace(data=torch.tensor([t, h, w]))}
            features.append(SimpleNamespace(modality=modality, data=data, mm_position=SimpleNamespace(offset=at)))
            at += t * h * w // 4
        size = at + int(rng.integers(0, 3))
        positions, delta = Real.get_mrope_input_positions(model, [1] * size, features)
        found.append([size, items, positions.tolist(), delta])
    return found


def record_pixels() -> list[Any]:
    """[grid, bytes of the resized frames in the order of the patches, as text in base 16]."""
    import torch
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    processor, found = Qwen2VLVideoProcessor(**SIZES), []
    for index in range(len(FILMS)):
        frames = torch.from_numpy(film(index)).permute(0, 3, 1, 2)
        made = processor([frames], return_tensors="pt", do_sample_frames=False)
        patches = made["pixel_values_videos"].numpy().reshape(-1, 3, 32)
        whole = np.rint((patches * np.array(STD)[:, None] + np.array(MEAN)[:, None]) * 255)
        found.append([made["video_grid_thw"][0].tolist(), whole.astype(np.uint8).tobytes().hex()])
    return found


def record_balance() -> list[Any]:
    """[sizes, ranks, [items by rank, counts, loads]]."""
    from vllm.model_executor.models.vision import get_load_balance_assignment

    rng, found = np.random.default_rng(2), []
    for _ in range(60):
        sizes = rng.choice([4, 16, 24, 100, 1000], int(rng.integers(0, 9))).tolist()
        ranks = int(rng.integers(1, 5))
        found.append([sizes, ranks, list(get_load_balance_assignment(sizes, ranks))])
    return found


def record_cache() -> list[Any]:
    """[bytes of the cache, [[[name, bytes], …], which were sent, names of both sides from the oldest], …]."""
    import torch
    from vllm.multimodal.cache import MultiModalProcessorSenderCache, MultiModalReceiverCache
    from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFieldElem, MultiModalKwargsItem

    found = []
    for seed in range(4):
        rng, size = np.random.default_rng(seed), 1000 + 500 * seed
        config = SimpleNamespace(get_multimodal_config=lambda s=size: SimpleNamespace(mm_processor_cache_gb=s / 2**30))
        sender, receiver = MultiModalProcessorSenderCache(config), MultiModalReceiverCache(config)
        sizes, steps = rng.integers(10, 400, 12).tolist(), []
        for _ in range(40):
            asked = [int(i) for i in rng.integers(0, 12, int(rng.integers(1, 4)))]
            items, sent = [], []
            is_cached = [sender.is_cached_item(str(i)) for i in asked]
            for i in asked:
                sender.touch_sender_cache_item(str(i))
            for i, cached in zip(asked, is_cached, strict=True):
                elem = MultiModalFieldElem(
                    data=torch.zeros(sizes[i], dtype=torch.uint8), field=MultiModalBatchedField()
                )
                item = MultiModalKwargsItem({"a": elem})
                out, _ = sender.get_and_update_item(None if cached else (item, []), str(i))
                items.append(out)
                sent.append(out is not None)
            features = [
                SimpleNamespace(mm_hash=str(i), identifier=str(i), data=out)
                for i, out in zip(asked, items, strict=True)
            ]
            receiver.get_and_update_features(features)
            assert list(sender._cache.order) == list(receiver._cache.order)
            steps.append([[[str(i), sizes[i]] for i in asked], sent, list(receiver._cache.order)])
        found.append([size, steps])
    return found


def main() -> None:
    """Write the file."""
    import torchvision
    import transformers

    kept = {
        "provenance": {
            "vllm": "0.22.1", "transformers": transformers.__version__, "torchvision": torchvision.__version__,
            "device": "CPU", "python": platform.python_version(), "command": "mini_vllm/tests/golden/record_video.py",
        },
        "sampling": record_sampling(), "positions": record_positions(), "pixels": record_pixels(),
        "cache": record_cache(), "balance": record_balance(),
    }  # fmt: skip
    write_packed(FILE, kept)
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
