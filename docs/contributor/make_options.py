"""Write docs/user/options.md: every option, made from the classes that check it.

python docs/contributor/make_options.py
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from curation_assets.core.roles import ROLES
from curation_assets.core.settings import Profile
from curation_assets.core.validation import content_of, described, fields_of, nested, unit_of
from curation_assets.engines.needs import needs_of
from curation_assets.selection.policy import Policy, Prefilter
from curation_assets.sources.all_options import PoolOptions
from curation_assets.sources.declaration import DeclaredSource, Pool
from curation_assets.sources.download.download import DownloadSettings

PAGE = Path(__file__).parents[1] / "user" / "options.md"
COMMAND = "python docs/contributor/make_options.py"


def _of_options() -> list[tuple[str, str, type]]:
    """Tables of the options that are mappings; each class has its `heading`."""
    tables: list[tuple[str, str, type]] = []
    for name, info in fields_of(PoolOptions).items():
        if (cls := nested(info.annotation)) is not None:
            is_switched = described(info).startswith("true")
            default = "`true` takes the defaults" if is_switched else "null takes the default of its kind"
            tables.append((vars(cls)["heading"], f"Under `options: {{{name}: …}}`; {default}", cls))
    return tables


#: (heading, where it is written, class) of every table, in the order of the page.
TABLES: tuple[tuple[str, str, type], ...] = (
    ("Pool", "In `<home>/pools/NAME.yaml`", Pool),
    ("Options of a pool", "Under `options:` of a pool", PoolOptions),
    *_of_options(),
    ("Source", "Each under `sources:` of a pool", DeclaredSource),
    ("Download", "Under `download:` of a pool", DownloadSettings),
    ("Policy", "In a file of its own, `<home>/pools/NAME/POLICY.yaml`", Policy),
    ("Prefilter", "Each under `prefilters:` of a policy", Prefilter),
    ("Profile", "In a file of its own, `--profile FILE.yaml`", Profile),
)


def options_page() -> str:
    """The whole page, Markdown."""
    head = (
        "# Options\n\n"
        f"Made from the code by `{COMMAND}`; do not edit.\n\n"
        "A name that is not here is an error that names the nearest. An option without a default is null or empty.\n"
    )
    tables = "".join(f"\n## {heading}\n\n{where}.\n\n{_table(cls)}" for heading, where, cls in TABLES)
    return head + tables + _model_settings()


def _model_settings() -> str:
    """Settings by role; what they do is in the docstring of each role's `load`."""
    rows = [("role", "settings"), ("---",) * 2]
    named = {role: sorted(needs_of(role).settings) for role in ROLES}
    rows += [(f"`{role}`", ", ".join(names)) for role, names in named.items() if names]
    return (
        "\n## Settings of models\n\n"
        "Under `generation: {ROLE: {NAME: VALUE}}` of a profile, or `curate score … --set ROLE.NAME=VALUE`. Some are "
        "of one kind of model only, which refuses the others. Addresses name a part that the model lacks. `precision` "
        "is auto, float32, bfloat16 or float16. What each does: the docstring of `load` in "
        "`curation_assets/engines/ROLE.py`.\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    )


def _table(cls: type) -> str:
    rows = [("option", "takes", "default", "unit", "what it does"), ("---",) * 5]
    for name, info in fields_of(cls).items():
        default = "required" if info.is_required() else _shown(info.get_default(call_default_factory=True))
        takes = described(info) + (" (below)" if nested(info.annotation) else "")
        rows.append((f"`{name}`", takes, default, unit_of(info) or "", str(info.description)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _shown(default: Any) -> str:
    """A default as YAML has it; nothing for null, and for what is empty."""
    content = content_of(default)
    if content is None or (isinstance(content, Mapping | list | str) and not content):
        return ""
    return f"`{yaml.safe_dump([content], default_flow_style=True, width=1000).strip()[1:-1]}`"


if __name__ == "__main__":
    PAGE.write_text(options_page(), encoding="utf-8")
