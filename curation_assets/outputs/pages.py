"""How pages of HTML and Markdown are made from their templates."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from curation_assets.core.version import __version__
from curation_assets.core.visible import visible, visible_texts


def page_of(template: Path, **shown: Any) -> str:
    """The page of HTML that a template makes of these values, which are escaped; it may use the report's macros.

    Raises jinja2.UndefinedError for a value that is missing.
    """
    return _read(template, is_html=True).render(**shown)


def markdown_of(template: Path, **shown: Any) -> str:
    """The page of Markdown that a template makes of these values. Raises as `page_of`."""
    page = _read(template, is_html=False)
    return page.render(software=f"curation_assets {__version__}", **shown).lstrip("\n")


def _read(template: Path, *, is_html: bool) -> Template:
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent / "report"]),
        autoescape=is_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible_texts,
    )
    environment.filters["cell"] = _cell
    return environment.get_template(template.name)


def _cell(value: object) -> str:
    """A value in a Markdown table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return visible(str(value)).replace("|", "\\|").replace("`", "'")


def inlined(text: str, *, is_json: bool = False) -> Markup:
    """Text that may stand inside a script element: no caption can end it."""
    if is_json:
        return Markup(visible(text.replace("<", "\\u003c"), "\n"))
    assert not any(end in text for end in ("</", "<!--")), "the script would end its own element"
    return Markup(text)
