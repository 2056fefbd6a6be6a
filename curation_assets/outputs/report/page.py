"""How a page of HTML is made from its template."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def page_of(template: Path, **shown: Any) -> str:
    """The page that a template makes of these values, which are escaped; it may use the macros of this folder."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(**shown)
