"""Reward (Compress & Align): people's preference for this caption of the image, predicted by a model of rankings."""

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, RewardModel, Texts
from curation_assets.methods import Example, Method, Values


def reward(image: Images, caption: Texts, reward_model: RewardModel) -> Values:
    """The model's reward of each pair. Compress & Align §3; formulas.md §9. Values of two trained models do not
    compare.
    """
    return Values.of(reward_model.reward_pairs(image, caption))


class _ExampleRewardModel:
    """Likes words."""

    def reward_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        return np.array([float(len(text.split()) - 2) for text in captions])


METHOD = Method(
    function=reward,
    unit="reward, comparable within one trained model",
    bounds=(float("-inf"), float("inf")),
    source="Compress & Align (supplement: architecture; formulas.md §9)",
    blank_caption="empty_caption",
    summary="Output of a reward model trained on people's rankings of captions for an image.",
    made_for=("mismatched", "partial", "abstract"),
    example=Example(
        columns={"image": [Image.new("RGB", (1, 1))] * 2, "caption": ["a red kite", "kite"]},
        value=[1.0, -1.0],
        roles={"reward_model": _ExampleRewardModel()},
    ),
)
