"""The transcript viewer: every block is shown, errors cannot be missed, and nothing in a message becomes markup."""

import re

from classroom import bars, show

MESSAGES = [
    {"role": "user", "content": "Read a.txt"},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a.txt"}},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no such file"}],
    },
]


def test_as_text_the_turns_stand_in_order_and_an_error_says_so():
    assert repr(show(MESSAGES, "scripted")).splitlines() == [
        "(scripted)",
        "user",
        "    Read a.txt",
        "assistant",
        "    I look.",
        "assistant · tool_use · read_file",
        '    {"path": "a.txt"}',
        "ERROR · user · tool_result",
        "    no such file",
    ]


def test_as_html_an_error_has_its_own_colour_and_word_and_the_raw_json_is_folded_away():
    page = show(MESSAGES)._repr_html_()
    turns = page.split("<div style=")[1:]
    assert ["#e5484d" in turn for turn in turns] == [False, False, False, True]
    assert "<b>ERROR · user · tool_result</b>" in turns[-1]
    assert "<details><summary>raw JSON</summary>" in page
    assert "&quot;tool_use_id&quot;: &quot;t1&quot;" in page


def test_markup_in_a_message_is_shown_and_not_run():
    page = show([{"role": "user", "content": "<script>alert(1)</script>"}], "<b>")._repr_html_()
    assert "<script>" not in page
    assert "&lt;b&gt;" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_block_of_an_unknown_kind_a_malformed_one_and_an_empty_message_are_shown_too():
    odd = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"no": "type"}]},
        {"role": "assistant", "content": []},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]},
    ]
    text = repr(show(odd))
    assert '{"type": "thinking", "thinking": "hm"}' in text
    assert '{"no": "type"}' in text
    assert "(nothing)" in text
    assert '{"type": "image"}' in text


def test_a_long_text_is_shortened_on_screen_and_whole_in_the_raw_json():
    page = show([{"role": "user", "content": "x" * 5000}])._repr_html_()
    assert "3,000 more characters in the raw JSON" in page
    assert "x" * 5000 in page


def test_what_is_no_message_at_all_is_shown_and_raises_nothing():
    loop = []
    loop.append(loop)
    odd = [
        "hi", {"role": "user"}, {"content": None}, {"role": 7, "content": "x"}, {"role": "user", "content": [5, None]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": None}]}]},
        {"role": "user", "content": [{"type": "tool_result", "content": 5}]},
        {"role": "user", "content": loop}, {"role": "user", "content": [{"type": "text", "text": b"bytes"}]},
        {"role": "user", "content": "half \ud800"},
    ]  # fmt: skip
    shown = show(odd)
    assert "(not a message)" in repr(shown)
    repr(shown).encode()
    shown._repr_html_().encode()


def test_bars_share_one_scale_and_read_as_text_too():
    rows = [("turn 1", {"cached": 30, "new": 10}), ("turn 10", {"cached": 30, "new": 50})]
    assert repr(bars(rows)).splitlines() == [
        " turn 1 #################### 30 cached, 10 new",
        "turn 10 ######################################## 30 cached, 50 new",
    ]
    page = bars(rows)._repr_html_()
    assert [float(w) for w in re.findall(r"width: ([\d.]+)%", page)] == [22.5, 7.5, 22.5, 37.5]
    assert "<b>" not in bars([("<i>", {"<u>": 1})])._repr_html_().replace("<b>&lt;i&gt;</b>", "")


def test_no_bars_and_bars_of_nothing_raise_nothing():
    assert repr(bars([])) == ""
    assert bars([("a", {"x": 0})])._repr_html_()
