"""The fault table: what each version makes of each fault, written down here and computed by the real loops."""

import re

import pytest

import classroom
from classroom.faults import FAULTS, OUTCOMES, fault_table, outcome
from classroom.versions import ROOT, chapters, taught

VERSIONS = list(map(taught, chapters()))
EXPECTED = {
    "a file that is not there": "crashes crashes told",
    "a directory in place of a file": "crashes crashes told",
    "a file that is no text": "crashes crashes told",
    "a path that no system takes": "crashes crashes told",
    "a tool that does not exist": "misled misled told",
    "a field left out": "crashes crashes told",
    "a number in place of a text": "crashes crashes told",
    "null in place of a text": "crashes crashes told",
    "a list in place of the fields": "crashes crashes told",
    "a misspelt optional field": "misled misled told",
    "two calls, of which one fails": "crashes crashes told",
    "a call in a reply that says it is done": "misled misled told",
    "a reply cut off inside a call": "misled stops told",
    "a reply with nothing in it": "misled misled stops",
    "a refusal": "misled stops stops",
    "a reason to stop that nobody knows": "misled stops stops",
    "a reply that is no message": "crashes crashes stops",
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_ends_in_a_version_as_it_should(fault, version):
    # A version after the last column keeps what the last one reached.
    expected = EXPECTED[fault].split()
    assert outcome(classroom.version(version), fault) == expected[min(VERSIONS.index(version), len(expected) - 1)]


def test_the_table_of_the_readme_is_the_computed_one():
    """At an older tag the README still has the columns of all versions; only those that are there are compared."""
    rows = re.findall(r"^\| (?:what the model does|a |null|two ).*$", (ROOT / "README.md").read_text(), re.M)
    printed = [" | ".join(row.strip("| ").split(" | ")[: 1 + len(VERSIONS)]) for row in rows]
    computed = [line.strip("| ") for line in fault_table().markdown().splitlines() if "---" not in line]
    assert printed == computed


def test_the_table_is_drawn_with_words_and_not_with_colours_alone():
    drawn = fault_table()._repr_html_()
    for word in OUTCOMES:
        assert f"<b>{word}</b>" in drawn
    assert drawn.count("<tr>") == len(FAULTS) + 1
    assert "a file that is not there" in repr(fault_table())
