"""Where the log goes."""

import io
import logging
import re

import pytest

from mini_vllm.logger import configure_logging, init_logger


@pytest.fixture
def root():
    """The package's logger, as it was in the end."""
    found = logging.getLogger("mini_vllm")
    before = list(found.handlers), found.propagate, found.level
    yield found
    found.handlers[:], found.propagate, found.level = before
    found.setLevel(before[2])


def test_a_level_sends_the_log_to_stderr_and_none_leaves_all_as_it_is(root):
    before = list(root.handlers), root.propagate, root.level
    configure_logging(None)
    assert (list(root.handlers), root.propagate, root.level) == before
    configure_logging("info")
    configure_logging("info")  # once is enough
    (handler,) = root.handlers
    handler.setStream(io.StringIO())
    init_logger("mini_vllm.somewhere").info("KV Transfer metrics: %s", "none")
    init_logger("mini_vllm.somewhere").debug("not this")
    line = r"INFO \d\d-\d\d \d\d:\d\d:\d\d \[test_logger.py:\d+\] KV Transfer metrics: none\n"
    assert re.fullmatch(line, handler.stream.getvalue())


def test_no_such_level(root):
    with pytest.raises(ValueError, match=r"VLLM_LOGGING_LEVEL must be one of DEBUG, .*, got 'loud'"):
        configure_logging("loud")
