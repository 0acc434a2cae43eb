"""What scripts ask of a tokenizer by name: special tokens, tokens of ids and the reverse, many texts at once.

Upstream twin: `vllm/tokenizers/hf.py`, whose tokenizers are transformers' own. Results equal those, but for two:
`decode` leaves special tokens out unless it is told not to, and `all_special_ids` has every token that it leaves out,
role marks too, where transformers has those with a name alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from mini_vllm.utils.checks import is_int, require, shown

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def as_ids(ids: Any) -> Iterable[int]:
    """One id as several; numpy's as Python's own. Raises TypeError for what holds none."""
    if is_int(ids):
        return (int(ids),)
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise TypeError(f"ids must be token ids, got {shown(ids, 60)}")
    return ids if isinstance(ids, list | tuple) else map(int, ids)


class NamedTokens:
    """The base of `CallableTokenizer`. Subclasses have `get_vocab`, `encode`, `decode`, and a `folder` if there is one.

    `bos_token`, `pad_token_id`, … of `NAMED` are there by name; None where the checkpoint has no such token.
    """

    folder: Path | None
    is_fast = True
    get_vocab: Any
    encode: Any
    decode: Any
    all_special_ids: list[int]

    def __getattr__(self, name: str) -> Any:
        base = name.removesuffix("_id")
        if base not in NAMED:
            said = f"{type(self).__name__!r} object has no attribute {name!r}"
            more = "" if self.folder is None else f": transformers' AutoTokenizer of {str(self.folder)!r} may have it"
            raise AttributeError(said + more)
        token = self.special_tokens_map.get(base)
        return token if base == name or token is None else self.convert_tokens_to_ids(token)

    @cached_property
    def _config(self) -> dict[str, Any]:
        """tokenizer_config.json, read once, when somebody first asks."""
        from mini_vllm.tokenizers.tokenizer_files import read_tokenizer_config

        return {} if self.folder is None else read_tokenizer_config(self.folder)

    def _sides(self, name: str, given: str | None) -> str:
        side = self._config.get(name) if given is None else given
        require(side in (None, "left", "right"), name, side, "'left' or 'right'")
        return side or "right"

    @cached_property
    def special_tokens_map(self) -> dict[str, str]:
        """Name -> token, of those that the checkpoint has."""
        from mini_vllm.tokenizers.tokenizer_files import read_special_tokens

        found = {} if self.folder is None else read_special_tokens(self.folder)
        return {name: found[name] for name in NAMED if found.get(name)}

    @property
    def all_special_tokens(self) -> list[str]:
        """The tokens of `all_special_ids`."""
        return [str(token) for token in self.convert_ids_to_tokens(self.all_special_ids)]

    @property
    def vocab(self) -> dict[str, int]:
        """As `get_vocab`."""
        return dict(self.get_vocab())

    @property
    def name_or_path(self) -> str:
        """The folder; "" where there is none."""
        return "" if self.folder is None else str(self.folder)

    @property
    def model_max_length(self) -> int:
        """Tokens of the longest text that the checkpoint names; 10**30, as in transformers, where it names none."""
        from mini_vllm.tokenizers.tokenizer_files import model_max_length

        return model_max_length(self._config) or int(1e30)

    @property
    def padding_side(self) -> str:
        """Where padding goes: "right", or "left"."""
        return self._sides("padding_side", None)

    @property
    def truncation_side(self) -> str:
        """What is cut: "right", or "left"."""
        return self._sides("truncation_side", None)

    @property
    def chat_template(self) -> str | None:
        """The checkpoint's template, as text; None where it has none."""
        from mini_vllm.entrypoints.chat_utils import load_chat_template

        return None if self.folder is None else load_chat_template(self.folder)

    def get_chat_template(self, chat_template: str | None = None, tools: Any = None) -> str:
        """The template that is used: the one given, else the checkpoint's. Raises ValueError where there is none."""
        found = self.chat_template if chat_template is None else chat_template
        if found is None:
            raise ValueError("this tokenizer has no chat template: pass chat_template")
        return found

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """How many tokens stand around a text, or around two."""
        return len(self.encode("")) if not pair else len(self.encode_pair("", "")[0])

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Tokens as the vocabulary writes them, None for an id without token; of one id, one.

        skip_special_tokens: without those that have a name, as transformers has it.
        """
        if is_int(ids):
            return self._token_of(int(ids))
        named = {self.convert_tokens_to_ids(token) for token in self.special_tokens_map.values()}
        left_out = named if skip_special_tokens else set()
        return [self._token_of(int(each)) for each in ids if each not in left_out]

    def _token_of(self, token_id: int) -> str | None:
        return self._tokens.get(token_id)

    @cached_property
    def _tokens(self) -> dict[int, str]:
        return {token_id: token for token, token_id in self.get_vocab().items()}

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """The id of a token as the vocabulary writes it, or the list of many; the id of `unk_token` for one that is
        unknown, None where there is none."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(each) for each in tokens]
        found = self.get_vocab().get(tokens)
        unknown = self.special_tokens_map.get("unk_token")
        return self.get_vocab().get(unknown) if found is None and unknown else found

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text of tokens, special ones too."""
        return self.decode(self.convert_tokens_to_ids(tokens), skip_special_tokens=False)

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text, as the vocabulary writes them."""
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens))

    def batch_decode(self, sequences: Iterable[Any], skip_special_tokens: bool = True) -> list[str]:
        """`decode` of each."""
        return [self.decode(each, skip_special_tokens=skip_special_tokens) for each in sequences]

    def get_added_vocab(self) -> dict[str, int]:
        """The tokens that were added to the vocabulary, to their ids."""
        from mini_vllm.tokenizers.tokenizer_files import read_tokenizer_spec

        added = [] if self.folder is None else read_tokenizer_spec(self.folder).get("added_tokens") or []
        return {each["content"]: each["id"] for each in sorted(added, key=lambda each: each["id"])}

    @property
    def added_tokens_encoder(self) -> dict[str, int]:
        """As `get_added_vocab`."""
        return self.get_added_vocab()
