"""Options that the declaration of a pool reads itself; all_options.py has those of the other folders, too."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from curation_assets.core.options import Options
from curation_assets.core.validation import Switch, Whole, checked, setting

ImageDomain = Literal["web", "photographs", "scenes", "other"]


_IN_A_FILE = re.compile(r"(?P<file>.+\.(parquet|csv|tsv|jsonl)):(?P<column>.+)")


def given_columns(given_signals: Mapping[str, str]) -> dict[str, tuple[Path | None, str]]:
    """The option `given_signals` as method → (file, or None for the pool's own table; column)."""
    found: dict[str, tuple[Path | None, str]] = {}
    for method, text in given_signals.items():
        match = _IN_A_FILE.fullmatch(text)
        found[method] = (Path(match["file"]).expanduser(), match["column"]) if match else (None, text)
    return found


@checked("options")
class SourceOptions(Options):
    """The scene world, where pairs come from, and what the source brings along."""

    size: Whole | None = setting(
        default=None, ge=1, unit="samples", description="World pools only: how many scenes.", of_one_pool=True
    )
    seed: Whole | None = setting(
        default=None, ge=0, description="World pools only: seed of the scenes.", of_one_pool=True
    )
    image_domain: ImageDomain | None = setting(
        default=None,
        description="Where the pairs come from, and so which measured AUCs are shown; null: web (a world: scenes).",
    )
    hash_lists: tuple[str, ...] = setting(
        default=(), description="Files of hashes of images never to use or show.", of_one_pool=True
    )
    given_signals: Mapping[str, str] = setting(
        default_factory=dict,
        description="Values you have already: method → column of the pool's table, or FILE:COLUMN.",
    )
    distil: Switch | None = setting(
        default=None, description="Run the teachers and distil a student of this pool; null: world pools only."
    )
