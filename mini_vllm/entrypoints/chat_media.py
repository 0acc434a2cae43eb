"""Pictures and films among the parts of a conversation: they are read, counted, and leave a marker in the text.

Upstream has it in `vllm/entrypoints/chat_utils.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mini_vllm.engine.multimodal_inputs import MultiModalInputs
from mini_vllm.entrypoints.chat_template import ChatTemplateError
from mini_vllm.multimodal.image import check_image
from mini_vllm.multimodal.video import check_video
from mini_vllm.utils.checks import shown

MEDIA_PARTS = {"image_url": "image", "input_image": "image", "image_pil": "image", "video_url": "video",
               "video_frames": "video"}  # fmt: skip
"""Kind of part -> its modality. "video_frames" is ours, as "image_pil" is upstream's: what is in memory already."""
OTHER_PARTS = ("image_embeds", "audio_url", "input_audio", "audio_embeds", "prompt_embeds")
"""Parts that upstream takes, and nothing here."""


class MultiModalItemTracker:
    """The items of one conversation, in their order.

    Args:
        inputs: the door for media; None: the model takes text alone. name: of the model, for that refusal.
        media_io_kwargs, mm_processor_kwargs: of the request.
        prepares: each item is made ready as soon as it is read, so that no two large ones are in memory.
        is_dry: the items are counted, but not read.

    Upstream: upstream/vllm/entrypoints/chat_utils.py:519 — `BaseMultiModalItemTracker`.
    """

    def __init__(
        self, inputs: MultiModalInputs | None, name: str = "this model",
        media_io_kwargs: Mapping[str, Any] | None = None, mm_processor_kwargs: Mapping[str, Any] | None = None,
        prepares: bool = False, is_dry: bool = False,
    ) -> None:  # fmt: skip
        self.inputs, self.name, self.prepares, self.is_dry = inputs, name, prepares, is_dry
        self._media_io_kwargs, self._mm_processor_kwargs = media_io_kwargs, mm_processor_kwargs
        self._items: dict[str, list[Any]] = {}
        self._uuids: dict[str, list[str | None]] = {}

    @property
    def interleave_strings(self) -> bool:
        """Whether markers stand where the items stood, where a template takes texts."""
        return self.inputs is not None and self.inputs.config.interleave_mm_strings

    def add(self, kind: str, part: Mapping[str, Any], where: str) -> tuple[str, str] | None:
        """Take a part; returns its modality, and the marker of the item. None: there is nothing in the part.

        Raises:
            ChatTemplateError: names the part and what is wrong with it.

        Upstream: upstream/vllm/entrypoints/chat_utils.py:580 — `BaseMultiModalItemTracker.add`.
        """
        modality = MEDIA_PARTS[kind]
        if self.inputs is None:
            raise ChatTemplateError(f"{self.name} is not a multimodal model")
        if modality not in self.inputs.modalities:
            raise ChatTemplateError(f"{where}: {self.name} takes {', '.join(self.inputs.modalities)}, no {modality}")
        given, uuid = part.get(kind if kind != "input_image" else "image_url"), part.get("uuid")
        if isinstance(given, Mapping):
            given = given.get("url")
        if given is None and uuid is None:
            return None
        items = self._items.setdefault(modality, [])
        processor = self.inputs.processor
        try:
            processor.info.validate_num_items(modality, len(items) + 1)
            item = None if given is None or self.is_dry else self._load(kind, given)
            if item is not None and self.prepares:
                name = None if uuid is None else str(uuid)
                item = processor.prepare(modality, len(items), item, name, self._mm_processor_kwargs)
            items.append(item)
        except ImportError:
            raise
        except (ValueError, TypeError) as error:
            raise ChatTemplateError(f"{where}: {error}") from None
        self._uuids.setdefault(modality, []).append(None if uuid is None else str(uuid))
        return modality, processor.get_placeholder_str(modality, len(items))

    def _load(self, kind: str, given: Any) -> Any:
        if kind == "image_pil":
            check_image(given, kind)
            return given
        if kind == "video_frames":
            check_video(given, kind)
            return given
        if not isinstance(given, str):
            raise ValueError(f"{kind} must be a URL, or an object with one as 'url', got {shown(given, 60)}")
        from mini_vllm.multimodal.media.connector import MediaConnector

        assert self.inputs is not None
        connector = MediaConnector(self.inputs.config, self._media_io_kwargs)
        return connector.fetch_image(given) if MEDIA_PARTS[kind] == "image" else connector.fetch_video(given)[0]

    def extras(self) -> dict[str, Any]:
        """What the engine's prompt has beside its tokens: {} where there are no items."""
        if not self._items:
            return {}
        named = any(uuid is not None for uuids in self._uuids.values() for uuid in uuids)
        uuids = {"multi_modal_uuids": self._uuids} if named else {}
        return {"multi_modal_data": self._items, **uuids}


def full_text_prompt(texts: Sequence[str], markers: Sequence[str], where: str) -> str:
    """The texts of a message, and before them the markers of its items that do not stand among them.

    Raises:
        ChatTemplateError: there are more markers than items.

    Upstream: upstream/vllm/entrypoints/chat_utils.py:1338 — `_get_full_multimodal_text_prompt`.
    """
    text = "\n".join(texts)
    missing = []
    for marker, count in Counter(markers).items():
        if text.count(marker) > count:
            raise ChatTemplateError(
                f"{where}: Found more '{marker}' placeholders in input prompt than actual multimodal data items."
            )
        missing += [marker] * (count - text.count(marker))
    return "\n".join([*missing, text] if text else missing)
