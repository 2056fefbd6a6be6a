"""Scene bank: how near is a caption to scenes that can be drawn? A teacher of concreteness without any training."""

import numpy as np

from curation_assets.core.roles import SceneBank, Texts
from curation_assets.methods import Example, Method, Values

SCENES_SHOWN = 3


def scene_bank(caption: Texts, scene_bank: SceneBank, k: int = 100) -> Values:
    """Mean cosine of a caption with its k nearest scenes (all, where the bank has fewer).

    A visual bottleneck without parameters, instead of VBA's text-to-image model and captioner: text → nearest
    scenes → their captions → similarity. Details: nearest_scenes (the first three) and nearest_cosine.
    Raises ValueError for k below 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    scenes, cosines = scene_bank.nearest_scenes(caption, k)  # N lists of names, (N, k)
    return Values.of(
        cosines.mean(axis=1),
        nearest_scenes=[names[:SCENES_SHOWN] for names in scenes],
        nearest_cosine=[float(row[0]) for row in cosines],
    )


class _ExampleBank:
    """Two scenes; the cosine is the share of the caption's words that the scene has."""

    def nearest_scenes(self, captions: Texts, k: int) -> tuple[list[list[str]], np.ndarray]:
        scenes, cosines = [], []
        for text in captions:
            words = text.split()
            ranked = [(sum(w in s.split() for w in words) / len(words), s) for s in ("a red kite", "a red mug")]
            ranked.sort(key=lambda pair: -pair[0])
            scenes.append([scene for _, scene in ranked[:k]])
            cosines.append([cosine for cosine, _ in ranked[:k]])
        return scenes, np.array(cosines)


METHOD = Method(
    function=scene_bank,
    unit="mean cosine with the nearest scenes",
    bounds=(-1.0, 1.0),
    source="in place of VBA (ICC: Image Caption Concreteness, 2024, §4.1); non-parametric, our own",
    version="2",
    blank_caption="empty_caption",
    summary="Mean cosine of the caption with the nearest captions of a bank of drawable scenes.",
    made_for=("abstract",),
    example=Example(
        columns={"caption": ["red kite", "red idea", "idea"]},
        # (1 + ½) / 2, (½ + ½) / 2, 0
        value=[0.75, 0.5, 0.0],
        roles={"scene_bank": _ExampleBank()},
    ),
)
