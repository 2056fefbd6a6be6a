"""YAML of people: what is no YAML, or would grow without end, is refused at once with its place."""

from pathlib import Path

import pytest

from curation_assets.cli.score import settings_given
from curation_assets.core.settings import load_settings
from curation_assets.core.yaml_files import MAX_VALUES, parse_yaml, read_yaml
from curation_assets.sources.declaration import load_pool


def bomb(form: str) -> str:
    """Ten aliases of ten aliases of …, ten deep: 10¹⁰ values."""
    lines = [f"a0: &a0 {'[x, x]' if form == 'list' else '{x: 1}'}"]
    for number in range(1, 11):
        aliases = ", ".join([f"*a{number - 1}"] * 10)
        whole = {"list": f"[{aliases}]", "merge": f"{{<<: [{aliases}]}}", "values": f"[{{k: [{aliases}]}}]"}[form]
        lines.append(f"a{number}: &a{number} {whole}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb("list"), "its aliases stand for"),
        (bomb("merge"), "its aliases stand for"),
        (bomb("values"), "its aliases stand for"),
        ("a: &a [*a]", "an alias inside what it names, line 1"),
        ("a: &a\n  b: &b {c: *a}", "an alias inside what it names"),
        ("[" * 20_000, "nested too deeply"),
        ("a: " + "9" * 5000, "no YAML"),
        ("a: 2025-13-45", "no YAML"),
        ("a: [", "no YAML"),
        ("a: !!python/name:os.system x", "no YAML"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as refusal:
        read_yaml(path)
    assert str(refusal.value).startswith(f"{path} is no YAML: ")
    assert len(str(refusal.value)) < 500


def test_aliases_that_stand_for_little_are_read() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: *a}", "text") == {"a": {"x": 1}, "b": {"x": 1, "y": {"x": 1}}}
    assert parse_yaml("", "text") is None
    assert len(parse_yaml("\n".join(f"- {number}" for number in range(20_000)), "text")) == 20_000 < MAX_VALUES


def test_a_declaration_and_a_setting_of_aliases_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pools").mkdir()
    source = "\n".join(f"  {line}" for line in bomb("list").splitlines())
    (tmp_path / "pools" / "p.yaml").write_text(f"name: p\nkind: url_table\nallow_hosts:\n{source}\n")
    with pytest.raises(ValueError, match=r"p\.yaml is no YAML: its aliases stand for"):
        load_pool(load_settings(tmp_path, "embedded"), "p")
    with pytest.raises(ValueError, match="--set a is no YAML: its aliases"):
        settings_given([f"a={bomb('list')}"])
