"""How a page of HTML is made from its template."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from curation_assets.core.visible import visible, visible_texts


def page_of(template: Path, **shown: Any) -> str:
    """The page that a template makes of these values, which are escaped; it may use the macros of this folder."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=visible_texts,
    )
    return environment.get_template(template.name).render(**shown)


def inlined(text: str, *, is_json: bool = False) -> Markup:
    """Text that may stand inside a script element: no caption can end it."""
    if is_json:
        return Markup(visible(text.replace("<", "\\u003c"), "\n"))
    assert not any(end in text for end in ("</", "<!--")), "the script would end its own element"
    return Markup(text)
