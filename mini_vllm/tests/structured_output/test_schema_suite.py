"""The official test suite of JSON Schema: no invalid instance is let through, and the page's row is true."""

from pathlib import Path

from mini_vllm.tests.structured_output.schema_suite import groups, judge, table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "structured-outputs.md"


def test_no_invalid_instance_of_the_official_suite_is_accepted():
    found = judge("mini")
    assert found["wrong"] == []
    assert len(groups()) > 300 and found["compiled"] > 190 and found["invalid"] > 550 and found["valid_taken"] > 400


def test_the_row_of_the_page_is_what_the_command_prints():
    assert table(("mini",)) in PAGE.read_text(encoding="utf-8")
