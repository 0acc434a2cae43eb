"""Grammars without a model: a vocabulary, samplers that mean ill, and the shortest way to an end.

The adversary takes, of the tokens that are legal, the one that its random and fixed taste likes least, and so walks
where no trained model would. It ends by a budget: after so many tokens it takes the legal token that brings the text
nearest to its end, which `EndDistances` knows.
"""

import functools
import random
import time

import numpy as np

from mini_vllm.config.structured_outputs import StructuredOutputsConfig
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.model_loader.checkpoint import resolve_model
from mini_vllm.structured_output.backend_mini import MiniBackend, MiniGrammar
from mini_vllm.structured_output.backend_types import StructuredOutputOptions, TokenVocabulary
from mini_vllm.structured_output.vocabulary import token_vocabulary
from mini_vllm.tests.helpers import POCKET
from mini_vllm.tokenizers.byte import ByteTokenizer


@functools.lru_cache(maxsize=2)
def pocket_vocabulary() -> TokenVocabulary:
    resolved, tokenizer, _ = resolve_model(str(POCKET), None, EngineConfig())
    return token_vocabulary(tokenizer, resolved.vocab_size, resolved.eos_token_ids)


def wait_for_grammar(request) -> None:
    """Until its grammar is compiled, in its thread."""
    state = request.structured_output_request
    while not (state is None or state.is_grammar_ready):
        time.sleep(0.001)


def wait_for_grammars(engine) -> None:
    """Before a test counts steps, or looks at what they plan."""
    for request in engine.scheduler.requests.values():
        wait_for_grammar(request)


def compile_at_once(engine) -> None:
    """From now on a request comes to the scheduler with its grammar: one that waits for it leaves the pool to the
    others, and nobody has to be preempted."""
    add_request = engine.scheduler.add_request
    engine.scheduler.add_request = lambda request: wait_for_grammar(request) or add_request(request)


def byte_vocabulary() -> TokenVocabulary:
    return token_vocabulary(ByteTokenizer(), 257)


def backend(vocabulary: TokenVocabulary, **config) -> MiniBackend:
    return MiniBackend(StructuredOutputsConfig(**config), vocabulary)


def grammar_of(kind: str, spec: str, vocabulary: TokenVocabulary | None = None) -> MiniGrammar:
    return backend(vocabulary or byte_vocabulary()).compile_grammar(StructuredOutputOptions[kind], spec)


def allowed(grammar) -> np.ndarray:
    """bool[vocab]: what may come next."""
    size = grammar.trie.vocab_size
    row = np.zeros((1, -(-size // 32)), np.int32)
    grammar.fill_bitmask(row, 0)
    return np.unpackbits(row[0].view(np.uint8), count=size, bitorder="little").astype(bool)


def matches(grammar, text: str | bytes) -> bool:
    """Whether a grammar over a byte vocabulary allows exactly this text."""
    data = text.encode() if isinstance(text, str) else text
    grammar.reset()
    return grammar.accept_tokens("", list(data)) and grammar.is_accepting()


class EndDistances:
    """Bytes from a configuration to the nearest end of the text."""

    def __init__(self, grammar: MiniGrammar) -> None:
        self.pushdown = grammar.pushdown
        states, start_of = self.pushdown.states, self.pushdown.start_of
        self.of_state = of_state = [0 if state.is_final else 1 << 40 for state in states]
        changed = True
        while changed:
            changed = False
            for number in range(len(states) - 1, -1, -1):
                state, best = states[number], of_state[number]
                if not best:
                    continue
                for _, target in state.bytes_to:
                    if of_state[target] + 1 < best:
                        best = of_state[target] + 1
                for name, target in state.rules_to.items():
                    best = min(best, of_state[start_of[name]] + of_state[target])
                if best < of_state[number]:
                    of_state[number], changed = best, True

    def __call__(self, configuration) -> int:
        return min(map(self._of_stack, configuration), default=1 << 40)

    def _of_stack(self, stack) -> int:
        stack, total = stack[0] if isinstance(stack, tuple) else stack, 0  # a tuple: with what it remembers
        while stack is not None and stack is not self.pushdown.done:
            total += self.of_state[stack.state]
            stack = stack.parent
        return total


def adversarial_text(grammar: MiniGrammar, seed: int, budget: int = 40) -> bytes:
    """What the adversary writes; raises AssertionError at a dead end or where it does not come to an end."""
    rng = np.random.default_rng(seed)
    taste = rng.permutation(grammar.trie.vocab_size)
    stop = min(grammar.stop_token_ids)
    distances, choose = EndDistances(grammar), random.Random(seed)
    grammar.reset()
    text = b""
    for step in range(budget + 4000):
        legal = np.flatnonzero(allowed(grammar))
        assert len(legal), f"a dead end after {text!r}"
        if step >= budget and grammar.is_accepting():
            token = stop
        elif step >= budget:
            token = nearest_to_end(grammar, legal, distances)
        elif choose.random() < 0.2:
            token = int(choose.choice(legal.tolist()))
        else:
            token = int(legal[np.argmin(taste[legal])])
        assert grammar.accept_tokens("", [token])
        if token == stop:
            return text
        text += grammar.trie.tokens[token]
    raise AssertionError(f"no end after {len(text)} bytes")


def nearest_to_end(grammar: MiniGrammar, legal: np.ndarray, distances: EndDistances) -> int:
    """The single-byte token after which the end is nearest; where items are remembered, no white space if there is
    another: the distance knows of no item that has been used up."""
    tokens, best = grammar.trie.tokens, (1 << 50, -1)
    remembers = any(isinstance(each, tuple) for each in grammar._history[-1])
    others = [token for token in legal.tolist() if len(tokens[token]) == 1 and not tokens[token].isspace()]
    for token in others if remembers and others else legal.tolist():
        if len(tokens[token]) == 1:
            grammar.accept_tokens("", [token])
            best = min(best, (distances(grammar._history[-1]), token))
            grammar.rollback(1)
    assert best[1] >= 0
    return best[1]
