"""Checks of the pages: shape, links, citations, executed blocks, glossary, captures."""
