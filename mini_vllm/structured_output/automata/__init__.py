"""Automata of our own: from a grammar to the tokens that may come next. Upstream has no twin: xgrammar does it there.

expression.py        a rule's body: bytes, sequences, choices, repetitions, references
unicode_ranges.py    characters as sequences of bytes (UTF-8)
regex_parser.py, ebnf.py, json_schema.py      three languages that become rules
rule_automaton.py    a rule's body -> nondeterministic -> deterministic automaton
grammar.py           all rules together: what can end, what is left-recursive, what is refused
pushdown.py          sets of stacks, and where a byte takes them
token_trie.py        the vocabulary as a tree of bytes
token_masks.py       both together: which tokens survive from here
unique_items.py, unique_masks.py              the same where an array must not hold an item twice
"""
