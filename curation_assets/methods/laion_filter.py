"""The LAION-2B filter: an English caption, and a CLIP cosine of at least .28."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, ImageTextEncoder, LanguageIdentifier, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.clip_score import METHOD as CLIP_SCORE
from curation_assets.methods.clip_score import clip_cosine
from curation_assets.methods.datacomp_caption import ExampleIdentifier
from curation_assets.numeric.datacomp import ENGLISH

#: Addresses of OpenAI's ViT-B/32, whose cosines .28 was chosen for.
VIT_B_32 = ("open_clip:ViT-B-32-quickgelu@openai", "hub:openai/clip-vit-base-patch32")


def laion_filter(
    image: Images,
    caption: Texts,
    image_text_encoder: ImageTextEncoder,
    language_identifier: LanguageIdentifier,
    threshold: float = 0.28,
) -> Values:
    """1 where the likeliest language is English and the cosine is ≥ `threshold`, else 0. formulas.md §3.2.

    .28 belongs to OpenAI's ViT-B/32; with another encoder, or images that were resized, derive a threshold from the
    pool (formulas.md §4). The reference takes the language from gcld3, this from the role language_identifier.
    Details: rule (`not_english`, `low_cosine` or null), rule_value, cosine, language.
    """
    languages, probabilities = language_identifier.identify_languages(caption)
    cosines = clip_cosine(image_text_encoder.embed_images(image), image_text_encoder.embed_texts(caption))  # (N,)
    rule: list[str | None] = ["low_cosine" if cosine < threshold else None for cosine in cosines]
    for i, language in enumerate(languages):
        if language != ENGLISH:
            rule[i] = "not_english"
    by_rule = {"not_english": probabilities, "low_cosine": cosines}
    return Values.of(
        np.array([float(broken is None) for broken in rule]),
        rule=rule,
        rule_value=[None if broken is None else float(by_rule[broken][i]) for i, broken in enumerate(rule)],
        cosine=[float(cosine) for cosine in cosines],
        language=languages,
    )


def threshold_caution(addresses: Mapping[str, str], settings: Mapping[str, Any]) -> str | None:
    """Where .28 meets the cosines of another encoder."""
    encoder = addresses.get("image_text_encoder", "")
    if "threshold" in settings or encoder.startswith(VIT_B_32):
        return None
    return (
        f"its threshold .28 belongs to OpenAI's ViT-B/32, and image_text_encoder is {encoder or 'empty'}; "
        "set one for this encoder in the profile (methods: {laion_filter: {threshold: VALUE}}), or keep a share by "
        "CLIPScore instead (policy clip)"
    )


METHOD = Method(
    function=laion_filter,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="LAION-2B (Schuhmann et al. 2022) as in DataComp (Gadre et al. 2023) §3.2; formulas.md §3.2",
    summary="1 where the caption is English and its CLIP cosine is at least .28 (chosen for ViT-B/32), else 0.",
    made_for=("mismatched", "foreign"),
    caution=threshold_caution,
    example=Example(
        columns={"image": [Image.new("RGB", (1, 1))] * 3, "caption": ["right", "up", "both"]},
        value=[1.0, 0.0, 1.0],  # cosines 1, 0, .6
        roles={**CLIP_SCORE.example.roles, "language_identifier": ExampleIdentifier()},
    ),
)
