"""The role quality_judge: a multimodal language model that scores a pair, by what it writes or by a regression head."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from curation_assets.core.roles import Images, ModelIdentity, QualityJudge, Texts
from curation_assets.core.validation import check_known
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import quiet_loading, weights_dtype, without_gradients
from curation_assets.engines.needs import RoleNeeds

NEEDS = RoleNeeds(settings=("criterion", "prompt", "max_new_tokens", "precision"))
HEAD = "quality_head.safetensors"  # beside the model: weight (1, D), bias (1,)
#: MLM-Filter's four criteria (Wang et al. 2024, arXiv 2403.02677), in our words: a checkpoint that was tuned on its own
#: wants that as the setting `prompt`. {caption} is the sample's.
PROMPTS = {
    "image_text_matching": "Does the caption describe the main objects and features of the image?",
    "object_detail_fulfillment": "Does the caption give the details of the objects: number, colour, size, position?",
    "caption_text_quality": "Is the caption well written: fluent, correct, and without noise?",
    "semantic_understanding": "Does the caption tell more than what is seen at once: setting, relations, knowledge?",
}
QUESTION = "Caption: {{caption}}\n{question} Answer with one whole number from 0 (not at all) to 100 (fully)."


_NUMBER = re.compile(r"(?<![\d.-])(\d{1,3}(?:\.\d+)?)(?![\d])")


def score_in(answer: str) -> float:
    """The first number of an answer, NaN where there is none or it lies outside [0, 100]. "Score: 85/100" → 85."""
    found = _NUMBER.search(answer)
    value = float(found[1]) if found else np.nan
    return value if 0 <= value <= 100 else np.nan


class LlavaJudge:
    """LLaVA: the image in place of its token, a question, and the number in the answer."""

    def __init__(self, request: EngineRequest, folder: Path, prompt: str) -> None:
        from transformers import AutoProcessor, LlavaForConditionalGeneration

        quiet_loading()
        self.identity: ModelIdentity = request.identity
        model: Any = LlavaForConditionalGeneration.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype=weights_dtype(request.device, request.settings)
        )
        self.model = model.to(request.device).eval()
        self.processor: Any = AutoProcessor.from_pretrained(folder, local_files_only=True)
        self.processor.tokenizer.padding_side = "left"  # new tokens follow the question
        self.prompt = prompt
        self.max_new_tokens = int(request.settings.get("max_new_tokens", 8))
        self.batch_size, self.device = request.batch_size, request.device

    def _inputs(self, images: Images, captions: Texts) -> Any:
        texts = [f"{self.processor.image_token}\n{self.prompt.replace('{caption}', caption)}" for caption in captions]
        pictures = [image.convert("RGB") for image in images]
        return self.processor(images=pictures, text=texts, padding=True, return_tensors="pt").to(
            self.device, self.model.dtype
        )

    @without_gradients
    def judge_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        """(N,), (N,) → (N,) float64 in [0, 100], greedy decoding; NaN where the answer holds no such number."""
        scores: list[float] = []
        for start in range(0, len(captions), self.batch_size):
            part = slice(start, start + self.batch_size)
            inputs = self._inputs(images[part], captions[part])
            tokens = self.model.generate(**inputs, max_new_tokens=self.max_new_tokens, do_sample=False)
            answers = self.processor.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            scores += [score_in(answer) for answer in answers]
        return np.array(scores, dtype=np.float64)


class HeadJudge(LlavaJudge):
    """The same model with a regression head on the state of the last token (UniFilter: 0 to 3)."""

    def __init__(self, request: EngineRequest, folder: Path, prompt: str) -> None:
        from safetensors.torch import load_file

        super().__init__(request, folder, prompt)
        head = load_file(folder / HEAD)
        width = self.model.config.text_config.hidden_size
        shapes = {name: tuple(tensor.shape) for name, tensor in head.items()}
        if shapes != {"weight": (1, width), "bias": (1,)}:
            raise ValueError(f"{folder / HEAD}: expected weight (1, {width}) and bias (1,), got {shapes}")
        self.head = {name: tensor.float().to(self.device) for name, tensor in head.items()}

    @without_gradients
    def judge_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        """(N,), (N,) → (N,) float64 on the head's own scale, not clipped."""
        scores = [np.zeros(0)]
        for start in range(0, len(captions), self.batch_size):
            part = slice(start, start + self.batch_size)
            inputs = self._inputs(images[part], captions[part])
            last = self.model.model(**inputs).last_hidden_state[:, -1].float()  # (B, D); padding is on the left
            scores.append((last @ self.head["weight"].T + self.head["bias"])[:, 0].double().cpu().numpy())
        return np.concatenate(scores)


def load(request: EngineRequest) -> QualityJudge:
    """path: or hub: of a LLaVA checkpoint in transformers' layout; with quality_head.safetensors beside it, its head.

    Settings: criterion (one of PROMPTS; image_text_matching), prompt (in place of it; {caption} is filled in),
    max_new_tokens (8). Raises ValueError for another criterion, a prompt without {caption}, or a head of another width.
    """
    settings: Mapping[str, Any] = request.settings
    criterion = str(settings.get("criterion", "image_text_matching"))
    check_known("generation: quality_judge", "criterion", [criterion], PROMPTS)
    prompt = str(settings.get("prompt", QUESTION.format(question=PROMPTS[criterion])))
    if "{caption}" not in prompt:
        raise ValueError(f"generation: quality_judge: prompt must hold {{caption}}, got {prompt!r}")
    folder = local_folder(request.address)
    judge = HeadJudge if (folder / HEAD).is_file() else LlavaJudge
    return judge(request, folder, prompt)
