"""Write docs/operator/licences.md: the licence that each direct dependency states, and terms of the shipped weights.

python docs/contributor/make_licences.py      (part of make docs; of packages that are not installed, nothing is known)
"""

import tomllib
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operator" / "licences.md"
WEIGHTS = ROOT / "curation_assets" / "embedded" / "weights"
NOT_STATED, NOT_INSTALLED = "not stated in its metadata", "not installed where this page was made"
LONGEST = 60  # characters: a longer text is the licence itself, not its name

_SCENES = ("Apache-2.0", "trained on scenes that this project draws")
#: Folder of the shipped weights → their licence, and what they were made from that others own.
TERMS = {
    "captioner": _SCENES,
    "clip": _SCENES,
    "icc_student": (
        "Apache-2.0",
        "300 rated LAION captions (MIT), COCO captions (CC BY 4.0), Conceptual Captions (free for any purpose), "
        "alt-texts (MIT); [card](../models/icc_student.md)",
    ),
    "icc_student_static": (
        "Apache-2.0",
        "imitates icc_student on COCO captions (CC BY 4.0), Conceptual Captions (free for any purpose) and "
        "alt-texts (MIT); [card](../models/icc_student_static.md)",
    ),
    "icc_student_multilingual": (
        "Apache-2.0",
        "300 rated LAION captions (MIT); [card](../models/icc_student_multilingual.md)",
    ),
    "image_kind": (
        "Apache-2.0",
        "trained on 944 images of public repositories under open licences, no image; [card](../models/image_kind.md)",
    ),
    "nearest_captions": (
        "CC BY 4.0",
        "holds COCO val2017 captions (© COCO Consortium, CC BY 4.0) and Conceptual Captions (Google LLC, free for any "
        "purpose); [card](../models/photo_pair.md)",
    ),
    "nearest_photo": (
        "Apache-2.0, data for research and education",
        "vectors of photo_pair's 2,000 Flickr8k training photos (research and educational use), no photograph; "
        "[card](../models/photo_pair.md)",
    ),
    "object_detector": _SCENES,
    "parser": ("CC BY-SA 4.0", "derived from UD_English-EWT (CC BY-SA 4.0); [card](../models/parser.md)"),
    "photo_pair": (
        "Apache-2.0, data for research and education",
        "trained on 2,000 Flickr8k photos (research and educational use) and COCO captions (CC BY 4.0); "
        "[card](../models/photo_pair.md)",
    ),
    "reward_model": _SCENES,
    "reward_photos": (
        "Apache-2.0, data for research and education",
        "trained on 1,500 Flickr8k photos with their captions (research and educational use); "
        "[card](../models/reward_model.md)",
    ),
    "scene_bank": ("Apache-2.0", "captions that this project's grammar writes"),
    "semantic_decoder": _SCENES,
    "sentence_bottleneck": ("Apache-2.0", "fitted on COCO captions (CC BY 4.0) and scenes of this project"),
    "text_to_image": _SCENES,
}


def direct_dependencies() -> list[tuple[str, str]]:
    """(package, extra or '') of pyproject.toml, in its order; the extra dev is for work on the project itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return [(Requirement(text).name, extra) for extra, texts in groups.items() if extra != "dev" for text in texts]


def licence_of(package: str) -> str:
    """What the metadata of an installed package states, the SPDX expression first."""
    try:
        facts: PackageMetadata = metadata(package)
    except PackageNotFoundError:
        return NOT_INSTALLED
    text = (facts.get("License") or "").strip()
    named = [name.rpartition(" :: ")[2] for name in facts.get_all("Classifier") or [] if name.startswith("License ::")]
    short = text if text and text != "UNKNOWN" and len(text) <= LONGEST and "\n" not in text else ""
    return facts.get("License-Expression") or short or ", ".join(named) or NOT_STATED


def page() -> str:
    """The whole page."""
    lines = [
        "# Licences of what comes along",
        "",
        "Made by `python docs/contributor/make_licences.py` from the packages' own metadata: a statement of theirs, no",
        "advice of ours. This project is [Apache-2.0](../../LICENSE).",
        "",
        "## Direct dependencies",
        "",
        "| package | extra | licence |",
        "|---|---|---|",
        *(f"| {package} | {extra} | {licence_of(package)} |" for package, extra in direct_dependencies()),
        "",
        "## Weights in this package",
        "",
        "`curation_assets/embedded/weights/`; weights of other models come with the packages above, or from their hub.",
        "",
        "| weights | licence | made from |",
        "|---|---|---|",
        *(f"| {name} | {licence} | {source} |" for name, (licence, source) in sorted(TERMS.items())),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
