"""The role safety_classifier: open_nsfw, or any image classifier of transformers and the labels that are unsafe."""

from typing import Any

import numpy as np

from curation_assets.core.roles import Images, ModelIdentity, SafetyClassifier
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import chunks, quiet_loading, without_gradients
from curation_assets.engines.needs import FOLDER_SCHEMES, RoleNeeds

NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "onnx"), settings=("unsafe_labels", "threads"))


class ImageClassifier:
    """Sum of the softmax probabilities of the unsafe labels."""

    def __init__(
        self, identity: ModelIdentity, model: Any, processor: Any, unsafe: list[int], batch_size: int, device: str
    ) -> None:
        self.identity = identity
        self.model = model.to(device).eval()
        self.processor = processor
        self.unsafe = unsafe
        self.batch_size = batch_size
        self.device = device

    @without_gradients
    def unsafe_probabilities(self, images: Images) -> np.ndarray:
        """(N,) images of any mode → (N,) float64 in [0, 1]."""
        probabilities = [np.zeros(0)]
        for batch in chunks(images, self.batch_size):
            pixels = self.processor(images=[image.convert("RGB") for image in batch], return_tensors="pt")
            logits = self.model(**pixels.to(self.device)).logits.double()  # (B, C)
            probabilities.append(logits.softmax(dim=1)[:, self.unsafe].sum(dim=1).clamp(0.0, 1.0).cpu().numpy())
        return np.concatenate(probabilities)


def load(request: EngineRequest) -> SafetyClassifier:
    """onnx:yahoo_open_nsfw, or path: or hub: of a saved classifier with the setting `unsafe_labels`, which count.

    Raises ValueError where the model lacks such a label.
    """
    if request.address.scheme == "onnx":
        from curation_assets.engines import open_nsfw

        return open_nsfw.load(request)
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    quiet_loading()
    folder = local_folder(request.address)
    model = AutoModelForImageClassification.from_pretrained(folder, local_files_only=True, use_safetensors=True)
    labels = {str(name): int(number) for number, name in model.config.id2label.items()}
    unsafe_labels = list(request.settings.get("unsafe_labels", []))
    unknown = [name for name in unsafe_labels if name not in labels]
    if not unsafe_labels or unknown:
        raise ValueError(
            f"{request.address.text} has the labels {sorted(labels)}; name those that are unsafe in the profile: "
            f"generation: {{safety_classifier: {{unsafe_labels: [...]}}}}; got {unsafe_labels}"
        )
    processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
    unsafe = [labels[name] for name in unsafe_labels]
    return ImageClassifier(request.identity, model, processor, unsafe, request.batch_size, request.device)
