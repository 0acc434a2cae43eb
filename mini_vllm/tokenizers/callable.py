"""What scripts ask of a tokenizer beside the engine: a call, its length, a conversation as text or ids.

Upstream twin: `vllm/tokenizers/hf.py`, whose tokenizers are transformers' own; results equal those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mini_vllm.tokenizers.named import NamedTokens
from mini_vllm.utils.checks import is_int, require, shown

_PADDINGS = (True, False, "longest", "max_length", "do_not_pad")
_SETTINGS = {
    "padding": False, "truncation": None, "max_length": None, "return_tensors": None, "return_attention_mask": None,
    "return_token_type_ids": None, "return_length": False, "padding_side": None, "pad_to_multiple_of": None,
    "verbose": True, "stride": 0, "is_split_into_words": False, "text_target": None, "text_pair_target": None,
    "return_overflowing_tokens": False, "return_special_tokens_mask": False, "return_offsets_mapping": False,
    "tokenizer_kwargs": None,
}  # fmt: skip
"""The arguments of transformers' call, with their defaults; the last eight take no other value here."""
_FIXED = tuple(_SETTINGS)[10:]
_NOT_OF_A_TEMPLATE = {"return_assistant_tokens_mask", "tokenizer_kwargs"}
"""Arguments of transformers' `apply_chat_template` that would be handed to the template as variables."""


class BatchEncoding(dict[str, Any]):
    """A dict of which the keys are attributes, too. transformers' class has this name."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{name!r} is not in this encoding, which has {sorted(self)}") from None


class CallableTokenizer(NamedTokens):
    """The base of all tokenizers here. Subclasses have `encode`, `get_vocab`, and where there are files, `folder`.

    Upstream: upstream/vllm/tokenizers/protocol.py:13 — `TokenizerLike`.
    """

    folder: Path | None = None

    def __len__(self) -> int:
        """Tokens, added ones too."""
        return len(self.get_vocab())

    def get_vocab(self) -> dict[str, int]:
        """Tokens to their ids."""
        raise NotImplementedError

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text."""
        raise NotImplementedError

    def encode_pair(self, text: str, pair: str, add_special_tokens: bool = True) -> tuple[list[int], list[int]]:
        """Ids of two texts in one sequence, and which of the two each id belongs to."""
        raise NotImplementedError(f"{type(self).__name__} does not know how two texts stand in one sequence")

    def __call__(
        self, text: str | Sequence[str], text_pair: str | Sequence[str] | None = None, add_special_tokens: bool = True,
        **settings: Any,
    ) -> BatchEncoding:  # fmt: skip
        """Ids and masks of a text, or lists of them for many.

        Args:
            text_pair: for each text a second one in the same sequence. settings: `padding`, `truncation`, `max_length`,
                `padding_side`, `pad_to_multiple_of`, `return_tensors` ("np" or "pt"), `return_attention_mask`,
                `return_token_type_ids`, `return_length`, as transformers has them.

        Raises ValueError for what is not there, by name.
        """
        given = _checked(settings)
        many = not isinstance(text, str)
        texts: list[Any]
        pairs: list[Any]
        texts = [text] if not many else [*text]
        pairs = [text_pair] if not many else list(text_pair or [None] * len(texts))  # type: ignore[list-item]
        wrong = [each for each in (*texts, *(pair for pair in pairs if pair is not None)) if not isinstance(each, str)]
        require(not wrong and len(texts) == len(pairs), "text", text, "a text or a list of texts, with a pair for each")
        if given["max_length"] and given["truncation"] is None and given["padding"] is False:
            given["truncation"] = True  # transformers says so in its log
        limit = self._limit(given) if given["truncation"] not in (None, False, "do_not_truncate") else None
        rows = [self._row(a, b, add_special_tokens, limit) for a, b in zip(texts, pairs, strict=True)]
        return self._batch(rows, given, many)

    def apply_chat_template(
        self, conversation: Sequence[Any], tools: Any = None, documents: Any = None, chat_template: str | None = None,
        add_generation_prompt: bool = False, continue_final_message: bool = False, tokenize: bool = True,
        padding: Any = False, truncation: bool = False, max_length: int | None = None, return_tensors: Any = None,
        return_dict: bool = True, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """A conversation, or several, by the checkpoint's template: the text, or with `tokenize` what a call gives of
        it; its ids alone without `return_dict`. kwargs go to the template. Raises ChatTemplateError, ValueError."""
        from mini_vllm.entrypoints.chat_utils import ChatTemplateError
        from mini_vllm.entrypoints.chat_utils import apply_chat_template as render

        if self.folder is None and chat_template is None:
            raise ChatTemplateError("this tokenizer has no folder with a chat template: pass chat_template")
        for name in sorted(_NOT_OF_A_TEMPLATE & kwargs.keys()):
            require(not kwargs.pop(name), name, True, "unset: nothing here is trained")
        many = bool(conversation) and not isinstance(conversation[0], Mapping)
        texts = [
            render(
                self.folder or str(chat_template), messages, add_generation_prompt, chat_template=chat_template,
                continue_final_message=continue_final_message, tools=tools, documents=documents, **kwargs,
            )
            for messages in (conversation if many else [conversation])
        ]  # fmt: skip
        if not tokenize:
            return texts if many else texts[0]
        settings = {
            "padding": padding, "truncation": truncation, "max_length": max_length, "return_tensors": return_tensors,
        }  # fmt: skip
        encoded = self(texts if many else texts[0], add_special_tokens=False, **settings)
        return encoded if return_dict else encoded["input_ids"]

    def _limit(self, given: Mapping[str, Any]) -> int | None:
        from mini_vllm.tokenizers.tokenizer_files import model_max_length

        return model_max_length(self._config) if given["max_length"] is None else given["max_length"]

    def _row(
        self, text: str, pair: str | None, add_special_tokens: bool, limit: int | None
    ) -> tuple[list[int], list[int]]:
        if pair is not None:
            ids, types = self.encode_pair(text, pair, add_special_tokens)
            if limit is not None and len(ids) > limit:
                raise ValueError(f"truncation of two texts is not served: they are {len(ids)} tokens, allowed: {limit}")
            return ids, types
        ids = self.encode(text, add_special_tokens)
        if limit is not None and len(ids) > limit:
            ids = self._cut(ids, self.encode(text, False), limit)
        return ids, [0] * len(ids)

    def _cut(self, ids: list[int], inner: list[int], limit: int) -> list[int]:
        """The first tokens of the text (the last, where `truncation_side` says so), and all that stands around it."""
        before = next(i for i in range(len(ids)) if ids[i : i + len(inner)] == inner)
        kept = max(0, limit - (len(ids) - len(inner)))
        side = self._sides("truncation_side", None)
        middle = inner[:kept] if side == "right" else inner[len(inner) - kept :]
        return ids[:before] + middle + ids[before + len(inner) :]

    def _batch(self, rows: list[tuple[list[int], list[int]]], given: Mapping[str, Any], many: bool) -> BatchEncoding:
        found = {"input_ids": [ids for ids, _ in rows]}
        if given["return_token_type_ids"]:
            found["token_type_ids"] = [types for _, types in rows]
        if given["return_attention_mask"] in (None, True):
            found["attention_mask"] = [[1] * len(ids) for ids, _ in rows]
        self._pad(found, given)
        if given["return_length"]:
            found["length"] = [len(ids) for ids in found["input_ids"]]  # type: ignore[misc]
        if given["return_tensors"] is None:
            return BatchEncoding(found if many else {k: v if k == "length" else v[0] for k, v in found.items()})
        return BatchEncoding({key: _tensor(values, given["return_tensors"]) for key, values in found.items()})

    def _pad(self, found: dict[str, list[list[int]]], given: Mapping[str, Any]) -> None:
        how, ids = given["padding"], found["input_ids"]
        if how in (False, "do_not_pad"):
            return
        longest = max(map(len, ids), default=0)
        length = max(longest, self._limit(given) or longest) if how == "max_length" else longest
        step = given["pad_to_multiple_of"] or 1
        length, left = -(-length // step) * step, self._sides("padding_side", given["padding_side"]) == "left"
        token = self._config.get("pad_token")
        name = token["content"] if isinstance(token, dict) else token
        pad_id = self.get_vocab().get(name) if name else None
        if pad_id is None and any(len(row) < length for row in ids):
            raise ValueError("padding needs a pad_token, and tokenizer_config.json names none")
        for key, values in found.items():
            fill = pad_id if key == "input_ids" else 0
            for i, row in enumerate(values):
                more: list[Any] = [fill] * (length - len(row))
                values[i] = more + row if left else row + more


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        require(name in _SETTINGS, "argument", name, f"one of {', '.join(_SETTINGS)}")
        if name in _FIXED:
            require(value == _SETTINGS[name], name, value, f"{_SETTINGS[name]!r}")
    given = {**_SETTINGS, **settings}
    require(given["padding"] in _PADDINGS, "padding", given["padding"], f"one of {_PADDINGS}")
    cuts = (None, True, False, "longest_first", "do_not_truncate")
    require(given["truncation"] in cuts, "truncation", given["truncation"], f"one of {cuts}")
    for name in ("max_length", "pad_to_multiple_of"):
        ok = given[name] is None or (is_int(given[name]) and given[name] > 0)
        require(ok, name, given[name], "a whole number above 0, or None")
    require(
        given["return_tensors"] in (None, "np", "pt"), "return_tensors", given["return_tensors"], "'np', 'pt' or None"
    )
    return given


def _tensor(values: Any, kind: str) -> Any:
    import numpy as np

    try:
        array = np.array(values, np.int64)
    except ValueError:
        raise ValueError(
            f"return_tensors={kind!r} needs rows of one length: pass padding=True, got {shown(values)}"
        ) from None
    if kind == "np":
        return array
    import torch

    return torch.from_numpy(array)
