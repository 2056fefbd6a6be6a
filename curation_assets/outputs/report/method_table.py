"""The table of methods: the facts of each, and which shipped profile can run it. Also in docs/user/methods.md."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from curation_assets.core.settings import PROFILES_ROOT, Profile, load_profile
from curation_assets.methods import Method, all_methods
from curation_assets.stores.documents import save_text

BEGIN, END = "<!-- methods -->", "<!-- /methods -->"
HEADINGS = ("method", "score", "unit", "better", "reads", "models", "profiles", "source")


def shipped_profiles() -> dict[str, Profile]:
    """The profiles that ship with the package, by name."""
    return {path.stem: load_profile(path.stem) for path in sorted(PROFILES_ROOT.glob("*.yaml"))}


def availability(method: Method, profile: Profile) -> str | None:
    """What the profile lacks to run the method; None for nothing.

    Else the roles to fill, the package to install, or the setting to make.
    """
    unfilled = [role for role in method.roles if role not in profile.roles]
    if unfilled:
        return "needs " + ", ".join(unfilled)
    debian = [profile.roles[role] for role in method.roles if profile.roles[role].startswith("debian:")]
    if debian:
        return "with Debian's " + ", ".join(package.partition(":")[2] for package in debian)
    settings = profile.methods.get(method.name, {})
    return "other encoder: set its threshold" if method.caution(profile.roles, settings) else None


def method_rows(
    profiles: Mapping[str, Profile] | None = None, methods: Iterable[Method] | None = None
) -> list[dict[str, str]]:
    """One row per method, of the package unless others are given, in their order; keys are HEADINGS."""
    profiles = shipped_profiles() if profiles is None else profiles
    rows = []
    for method in all_methods().values() if methods is None else methods:
        lacks = {name: availability(method, profile) for name, profile in profiles.items()}
        facts = (
            method.name,
            method.summary,
            method.unit_and_bounds,
            method.direction,
            ", ".join(method.columns),
            ", ".join(method.roles) or "none",
            _in_words(lacks),
            method.source,
        )
        rows.append(dict(zip(HEADINGS, facts, strict=True)))
    return rows


def _in_words(lacks: Mapping[str, str | None]) -> str:
    """Which profiles run a method: 'all', 'all but NAME (needs …)', or 'NAME; others need …'."""
    reasons = set(lacks.values())
    if len(reasons) == 1:
        only = reasons.pop()
        return "all" if only is None else f"all ({only})"
    runners = [name for name, what in lacks.items() if what is None]
    others = {name: what for name, what in lacks.items() if what is not None}
    if len(runners) >= len(others):
        return "all but " + ", ".join(f"{name} ({what})" for name, what in others.items())
    if len(set(others.values())) == 1:
        return f"{', '.join(runners)}; others {next(iter(others.values())).replace('needs ', 'need ', 1)}"
    return ", ".join([*runners, *(f"{name} ({what})" for name, what in others.items())])


def markdown_table(profiles: Mapping[str, Profile] | None = None) -> str:
    """The table as Markdown, one method a line."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    for row in method_rows(profiles):
        cells = [f"`{row['method']}`", *(row[name] for name in HEADINGS[1:])]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def table_in(text: str) -> str:
    """What stands between the markers of a Markdown text. Raises ValueError where they are not there once each."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"expected {BEGIN} and then {END}, once each, to mark the place of the table of methods")
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def write_table(path: Path) -> bool:
    """Put the table between the markers of a Markdown file; whether that changed it. Raises as `table_in` does."""
    text = path.read_text(encoding="utf-8")
    if table_in(text) == markdown_table():
        return False
    table = f"{BEGIN}\n{markdown_table()}\n{END}"
    replaced = re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: table, text, flags=re.DOTALL)
    save_text(path, replaced)
    return True
