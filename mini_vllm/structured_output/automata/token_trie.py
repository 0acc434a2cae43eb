"""A vocabulary as a tree of bytes, in arrays: the tokens that begin alike are read once.

Nodes are numbered level by level, so that the children of a node stand side by side. A walk carries a set of nodes and,
for each, the configuration in which a grammar is after the bytes up to it; a level is a few numpy operations, however
many nodes are alive. Upstream has no twin.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenTrie:
    """byte_of: uint8[nodes], the byte that leads to a node. first_child, num_children: int32[nodes]. The root is 0.

    node_of_token: int32[vocab], where a token ends; 0 for tokens without bytes, which are never allowed.
    num_words: 32-bit words of a mask. longest: bytes of the longest token.
    """

    byte_of: np.ndarray
    first_child: np.ndarray
    num_children: np.ndarray
    node_of_token: np.ndarray
    vocab_size: int
    longest: int
    tokens: list[bytes]

    @property
    def num_nodes(self) -> int:
        """The root included."""
        return len(self.byte_of)

    @property
    def num_words(self) -> int:
        """int32 words of a row of the bitmask."""
        return -(-self.vocab_size // 32)

    @functools.cached_property
    def in_order(self) -> tuple[list[bytes], list[int]]:
        """The tokens in the order of their bytes, and their numbers."""
        named = sorted((token, number) for number, token in enumerate(self.tokens) if token)
        return [token for token, _ in named], [number for _, number in named]

    @classmethod
    def build(cls, tokens: Sequence[bytes], vocab_size: int) -> TokenTrie:
        """tokens[i]: bytes of token i, b"" for one that no grammar may use; `vocab_size` may be larger."""
        data = list(tokens[:vocab_size])
        longest = max(map(len, data), default=0)
        order = np.array(sorted((i for i in range(len(data)) if data[i]), key=data.__getitem__), np.int64)
        matrix, lengths = _as_matrix([data[i] for i in order], longest)
        byte_of, first_child, num_children = [np.zeros(1, np.uint8)], [], []
        node_of_token = np.zeros(vocab_size, np.int32)
        node_of_row = np.zeros(len(order), np.int64)
        num_nodes, level_start, level_size = 1, 0, 1
        for depth in range(longest):
            rows = np.flatnonzero(lengths > depth)
            parents, bytes_here = node_of_row[rows], matrix[rows, depth]
            is_new = np.ones(len(rows), bool)  # rows are sorted: a node's rows stand together
            is_new[1:] = (parents[1:] != parents[:-1]) | (bytes_here[1:] != bytes_here[:-1])
            nodes = num_nodes + np.cumsum(is_new) - 1
            counts = np.bincount(parents[is_new] - level_start, minlength=level_size)
            num_children.append(counts)
            first_child.append(num_nodes + np.cumsum(counts) - counts)
            byte_of.append(bytes_here[is_new])
            node_of_row[rows] = nodes
            ending = rows[lengths[rows] == depth + 1]
            node_of_token[order[ending]] = node_of_row[ending]
            level_start, level_size = num_nodes, int(is_new.sum())
            num_nodes += level_size
        leaves = np.zeros(level_size, np.int64)
        return cls(
            np.concatenate(byte_of),
            np.concatenate([*first_child, leaves]).astype(np.int32),
            np.concatenate([*num_children, leaves]).astype(np.int32),
            node_of_token, vocab_size, longest, data,
        )  # fmt: skip

    def children(self, nodes: np.ndarray, carried: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """All children of `nodes`, and for each what its parent carried."""
        counts = self.num_children[nodes]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        offsets = np.repeat(self.first_child[nodes] - (ends - counts), counts)
        return offsets + np.arange(total), np.repeat(carried, counts)

    def pack(self, alive: np.ndarray) -> np.ndarray:
        """int32[num_words]: bit t of the row is set where the node of token t is in `alive` (bool[nodes])."""
        allowed = np.zeros(self.num_words * 32, bool)
        allowed[: self.vocab_size] = alive[self.node_of_token]
        return np.packbits(allowed, bitorder="little").view(np.int32)


def _as_matrix(tokens: list[bytes], longest: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens as rows of bytes, padded with 0, and their lengths."""
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    padded = b"".join(token.ljust(longest, b"\0") for token in tokens)
    return np.frombuffer(padded, np.uint8).reshape(len(tokens), longest), lengths
