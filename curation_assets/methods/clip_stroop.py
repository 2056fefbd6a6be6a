"""CLIP-SP, Stroop probing: how little a caption changes the meaning of a prompt made for things that can be seen."""

import numpy as np

from curation_assets.core.roles import ImageTextEncoder, Texts
from curation_assets.methods import Example, Method, Values

SLOT = "[*]"
#: Our own short list: the published one is not public, so figures are not comparable with the paper's (formulas.md
#: §1.9).
PROMPTS = (
    "I see the [*]",
    "a photo of [*]",
    "a drawing of [*]",
    "you can touch the [*]",
    "the [*] is in front of the house",
)


def clip_stroop(caption: Texts, image_text_encoder: ImageTextEncoder, prompts: Texts = PROMPTS) -> Values:
    """Minus the mean cosine of each prompt with its slot emptied and with the caption in it. formulas.md §1.9.

    What can be seen moves such a prompt far from its empty form, so the cosine falls with concreteness and its
    negative rises. The slot is removed literally: its neighbouring blanks stay.
    Raises ValueError for no prompts, or a prompt without exactly one slot.
    """
    if not prompts or any(prompt.count(SLOT) != 1 for prompt in prompts):
        raise ValueError(f"every prompt needs exactly one slot {SLOT}, got {list(prompts)}")
    emptied = image_text_encoder.embed_texts([prompt.replace(SLOT, "") for prompt in prompts])  # (P, D)
    filled = image_text_encoder.embed_texts([p.replace(SLOT, text) for text in caption for p in prompts])  # (N * P, D)
    filled = filled.reshape(len(caption), len(prompts), -1)
    return Values.of(-np.einsum("pd,npd->np", emptied, filled, dtype=np.float64).mean(axis=1))


class _ExampleEncoder:
    """Texts about a dog point up, all others right."""

    def embed_texts(self, texts: Texts) -> np.ndarray:
        return np.array([(0.0, 1.0) if "dog" in text else (1.0, 0.0) for text in texts])


METHOD = Method(
    function=clip_stroop,
    unit="negative cosine",
    bounds=(-1.0, 1.0),
    source="Alper et al. 2023 (Is BERT Blind?) §3, Stroop probing; baseline CLIP-SP of the ICC paper §5.1",
    blank_caption="empty_caption",
    summary="Negative mean CLIP cosine of prompts about sight with the caption in their slot and with an empty slot.",
    made_for=("abstract",),
    example=Example(
        columns={"caption": ["dog", "truth"]},
        value=[0.0, -1.0],
        roles={"image_text_encoder": _ExampleEncoder()},
    ),
)
