"""README.md of an export, made from its manifest: a copy that loses samples gets it anew."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from curation_assets.outputs.pages import markdown_of

CARD = "README.md"
SIZE_CATEGORIES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"),
                   (10_000_000, "1M<n<10M"), (100_000_000, "10M<n<100M"), (1_000_000_000, "100M<n<1B"))  # fmt: skip
#: RAI properties that every export fills, and what a card calls them; of a release's it has all in its YAML.
RAI_TEXTS = {
    "dataCollection": "Collection",
    "dataManipulationProtocol": "Manipulation",
    "dataLimitations": "Limitations",
    "personalSensitiveInformation": "Personal and sensitive information",
    "dataReleaseMaintenancePlan": "Maintenance",
}


def size_category(samples: int) -> str:
    """The hub's name for a size: 999 → 'n<1K', 1000 → '1K<n<10K'."""
    return next((name for limit, name in SIZE_CATEGORIES if samples < limit), "n>1B")


def card_text(manifest: Mapping[str, Any]) -> str:
    """The card that a manifest with `card` states: license_name; columns, (name, type) each; data_files, their pattern;
    features, YAML of their types where the files do not state them; rai, property → text."""
    card, counts = manifest["card"], manifest["counts"]
    shown = {
        **card,
        "facts": manifest["subset"],
        "samples": counts["written"],
        "entries": counts["entries"],
        "missing": manifest["subset"]["missing"],
        "size_category": size_category(counts["written"]),
        "rai": {title: card["rai"][name] for name, title in RAI_TEXTS.items()},
        "rai_yaml": yaml.safe_dump({"rai": card["rai"]}, allow_unicode=True, width=1 << 16),
        "has_images": "image" in (kind for _, kind in card["columns"]),
        "created_at": manifest["created_at"],
    }
    return markdown_of(Path(__file__).with_name("dataset_card.md.jinja"), **shown)
