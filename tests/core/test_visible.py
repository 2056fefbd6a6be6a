"""Texts of data on a terminal: nothing in them is a control character, and a line break makes no line."""

import io
import json

import pytest
from rich.table import Table
from rich.text import Text

from curation_assets.core.progress import reporter_for
from curation_assets.core.visible import Terminal, visible, visible_texts
from tests.support.hostile_texts import CONTROL, HOSTILE


def test_control_characters_are_written_as_json_writes_them() -> None:
    assert visible("a\x1b[31m\x9b\u202eb\nc\r\td\ud800") == r"a\u001b[31m\u009b\u202eb\nc\r\td\ud800"
    assert visible("a\nb\x07", "\n") == "a\nb\\u0007"
    plain = "Zoë’s 👩\u200d🚀 in \u05d0\u05d1, 100\u00a0% \\n"
    assert visible(plain) == plain
    assert json.loads(visible(json.dumps(HOSTILE, ensure_ascii=False, indent=1), "\n")) == HOSTILE
    assert visible_texts({"a\x9b": ["b\x85", 1, None, {"c": "d\ne"}]}) == {
        r"a\u009b": [r"b\u0085", 1, None, {"c": "d\ne"}]
    }


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_no_console_prints_them(hostile: str, is_terminal: bool) -> None:
    """Styles and moves of the console itself are its own: it prints those of a harmless text, too."""
    printed = []
    for text in (hostile, visible(hostile)):
        terminal = Terminal(file=io.StringIO(), force_terminal=is_terminal, width=300, legacy_windows=False)
        table = Table()
        table.add_column(Text(text))
        table.add_row(Text(visible(text)))
        terminal.print(text, markup=False, highlight=False)
        terminal.print(Text.assemble(("red", "red"), text))
        terminal.print(table)
        reporter = reporter_for(terminal)
        reporter.note(text)
        with reporter.task(f"reading {text}", 3) as advance:
            advance(1)
        printed.append(terminal.file.getvalue())  # type: ignore[attr-defined]
    found = [sorted(set(CONTROL.findall(one))) for one in printed]
    assert found[0] == found[1]
    assert ("\x1b" in found[0]) == is_terminal
    assert "[31m" not in printed[0].replace("\\u001b[31m", "").replace("\x1b[31mred", "")
