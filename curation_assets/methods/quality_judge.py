"""Quality by a multimodal judge of the operator's choice: MLM-Filter's prompts, UniFilter's head."""

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, QualityJudge, Texts
from curation_assets.methods import Example, Method, Values


def quality_judge(image: Images, caption: Texts, quality_judge: QualityJudge) -> Values:
    """What the judge of role quality_judge gives the pair; reason `no_score` where its answer holds no number."""
    value = np.asarray(quality_judge.judge_pairs(image, caption), dtype=np.float64)
    return Values(value, ["no_score" if np.isnan(one) else None for one in value])


class _ExampleJudge:
    """A point a letter; of nothing it says nothing."""

    def judge_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        return np.array([len(caption) or np.nan for caption in captions], dtype=np.float64)


METHOD = Method(
    function=quality_judge,
    unit="points of the judge: 0 to 100 by prompt (MLM-Filter), 0 to 3 by a head (UniFilter)",
    bounds=(-float("inf"), float("inf")),
    source="Wang et al. 2024 (MLM-Filter, arXiv 2403.02677); UniFilter; formulas.md §15.10",
    summary="Score of image and caption by a multimodal language model that the operator names.",
    no_planted_kind="no judge is shipped",
    blank_caption="empty_caption",
    example=Example(
        columns={"image": [Image.new("RGB", (1, 1))] * 2, "caption": ["kite", "a red kite"]},
        value=[4.0, 10.0],
        roles={"quality_judge": _ExampleJudge()},
    ),
)
