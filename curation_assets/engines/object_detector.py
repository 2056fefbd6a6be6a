"""The role object_detector: a transformers detector, dense labels of an image tower, or zero-shot labels of a list."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from curation_assets.core.roles import Detection, Images, ImageTextEncoder, ModelIdentity, ObjectDetector
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.batches import chunks, quiet_loading, without_gradients
from curation_assets.engines.needs import FOLDER_SCHEMES, Companions, Resolve, RoleNeeds, card_of
from curation_assets.stores.text_tables import each_line

if TYPE_CHECKING:
    import torch

#: What the detector of the Visual Genome features keeps (formulas.md §8.2): boxes from .2 on, at most 100.
THRESHOLD, MAX_BOXES = 0.2, 100
ZERO_SHOT_LABELS = 10  # formulas.md §7, stage 3
ZERO_SHOT_PROMPT = "a photo of {}"


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`tower`, where config.json names one; of a list of labels `image_text_encoder`, which the settings name."""
    folder = local_folder(address)
    if folder.is_file():
        if "image_text_encoder" not in settings:
            raise ValueError(
                f"{address.text} is a list of labels: name the model that finds them in the profile, "
                "generation: {object_detector: {image_text_encoder: 'embedded:clip'}}"
            )
        return {"image_text_encoder": resolve(settings["image_text_encoder"])}
    tower = card_of(address, "config.json").get("tower")
    return {} if tower is None else {"tower": resolve(f"path:{folder / tower}")}


NEEDS = RoleNeeds(
    schemes=(*FOLDER_SCHEMES, "ssd"),
    settings=("threshold", "min_boxes", "max_boxes", "count", "prompt", "image_text_encoder", "threads"),
    companions=companions,
)


class TransformersDetector:
    """Any model of `AutoModelForObjectDetection` with the image processor that belongs to its weights."""

    def __init__(
        self,
        identity: ModelIdentity,
        model: Any,
        processor: Any,
        settings: Mapping[str, Any],
        batch_size: int,
        device: str,
    ) -> None:
        """Settings: threshold (.2), min_boxes (0), max_boxes (100)."""
        self.identity = identity
        self.model = model
        self.processor = processor
        self.threshold = float(settings.get("threshold", THRESHOLD))
        self.min_boxes = int(settings.get("min_boxes", 0))
        self.max_boxes = int(settings.get("max_boxes", MAX_BOXES))
        self.batch_size = batch_size
        self.device = device

    @without_gradients
    def detect_objects(self, images: Images) -> list[list[Detection]]:
        """(N,) images → N lists, best first: those from the threshold on, at least min_boxes, at most max_boxes."""
        detections: list[list[Detection]] = []
        for batch in chunks(images, self.batch_size):
            inputs = self.processor([image.convert("RGB") for image in batch], return_tensors="pt").to(self.device)
            outputs = self.model(**inputs)
            sizes = [(image.height, image.width) for image in batch]
            detections += [
                self._kept(raw)
                for raw in self.processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=sizes)
            ]
        return detections

    def _kept(self, raw: Mapping[str, torch.Tensor]) -> list[Detection]:
        import torch

        names = self.model.config.id2label
        order = torch.argsort(raw["scores"], descending=True, stable=True).tolist()
        ranked = [
            Detection(names[int(raw["labels"][i])], float(raw["scores"][i]), _box(raw["boxes"][i].tolist()))
            for i in order[: self.max_boxes]
        ]
        return [
            detection
            for rank, detection in enumerate(ranked)
            if detection.score >= self.threshold or rank < self.min_boxes
        ]


class PatchLabels:
    """A linear reading of each patch of an image tower; touching patches of one label are one object."""

    def __init__(
        self,
        identity: ModelIdentity,
        tower: Any,  # a CLIPVisionModel
        processor: Any,
        folder: Path,
        settings: Mapping[str, Any],
        batch_size: int,
    ) -> None:
        """`folder`: config.json with labels (the first is null: no object) and threshold, model.safetensors."""
        from safetensors.torch import load_file

        config = json.loads((folder / "config.json").read_text())
        state = load_file(folder / "model.safetensors")
        self.identity = identity
        self.tower = tower
        self.processor = processor
        self.labels: list[str | None] = config["labels"]
        self.threshold = float(settings.get("threshold", config["threshold"]))
        self.weight, self.bias = state["weight"].float(), state["bias"].float()  # (C, D), (C,)
        self.batch_size = batch_size

    @without_gradients
    def detect_objects(self, images: Images) -> list[list[Detection]]:
        """(N,) images → N lists, best first; the score of an object is that of its surest patch."""
        detections: list[list[Detection]] = []
        for batch in chunks(images, self.batch_size):
            pixels = self.processor([image.convert("RGB") for image in batch], return_tensors="pt").pixel_values
            logits = patch_features(self.tower, pixels) @ self.weight.T + self.bias  # (B, P, C)
            shares = logits.softmax(-1).numpy()
            detections += [
                self._objects(image_shares, image.size) for image_shares, image in zip(shares, batch, strict=True)
            ]
        return detections

    def _objects(self, shares: np.ndarray, size: tuple[int, int]) -> list[Detection]:
        from scipy import ndimage

        side = round(len(shares) ** 0.5)
        shares = shares.reshape(side, side, -1)
        label = shares.argmax(-1)  # (side, side)
        patch_px = min(size) / side  # the tower sees the central square
        left, top = (size[0] - min(size)) / 2, (size[1] - min(size)) / 2
        detections = []
        for number in np.unique(label[label > 0]).tolist():
            regions, count = ndimage.label(label == number)
            for region, (rows, columns) in zip(range(1, count + 1), ndimage.find_objects(regions), strict=True):
                score = float(shares[..., number][regions == region].max())
                if score >= self.threshold:
                    box = (columns.start, rows.start, columns.stop, rows.stop)
                    placed = [edge * patch_px + offset for edge, offset in zip(box, (left, top) * 2, strict=True)]
                    detections.append(Detection(str(self.labels[number]), score, _box(placed)))
        return sorted(detections, key=lambda detection: (-detection.score, detection.label, detection.box))


class ZeroShotLabels:
    """The nouns of a list that CLIP finds nearest to the image: labels without places."""

    def __init__(
        self,
        identity: ModelIdentity,
        encoder: ImageTextEncoder,
        labels: Sequence[str],
        settings: Mapping[str, Any],
    ) -> None:
        """Settings: count (10 labels per image), prompt ('a photo of {}'). Raises ValueError without labels."""
        if not labels:
            raise ValueError(f"{identity.address}: expected one label a line, got none")
        self.identity = identity
        self.encoder = encoder
        self.labels = list(labels)
        self.count = int(settings.get("count", ZERO_SHOT_LABELS))
        prompt = str(settings.get("prompt", ZERO_SHOT_PROMPT))
        names = [prompt.format(label.partition(",")[0]) for label in self.labels]
        self.vectors = encoder.embed_texts(names)  # (L, D)

    def detect_objects(self, images: Images) -> list[list[Detection]]:
        """(N,) images → N lists of `count` labels, nearest first; the score is (1 + cosine) / 2, in [0, 1]."""
        cosines = self.encoder.embed_images(images) @ self.vectors.T if images else np.zeros((0, len(self.labels)))
        detections = []
        for row in cosines:  # (L,)
            nearest = np.argsort(-row, kind="stable")[: self.count]
            scores = np.clip((1 + row[nearest]) / 2, 0, 1)
            detections.append([Detection(self.labels[i], float(s)) for i, s in zip(nearest, scores, strict=True)])
        return detections


def _box(edges: Sequence[float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = (float(edge) for edge in edges)
    return left, top, right, bottom


def patch_features(tower: Any, pixels: torch.Tensor) -> torch.Tensor:
    """(B, 3, H, W) → (B, P, D): the tower's features of each patch, scaled to mean 0 and variance 1 per patch."""
    import torch

    hidden = tower(pixels).last_hidden_state[:, 1:]
    return torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])


def read_tower(folder: Path) -> Any:
    """The image tower of a captioner's folder."""
    import torch
    from transformers import VisionEncoderDecoderModel

    quiet_loading()
    model = VisionEncoderDecoderModel.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, dtype=torch.float32, attn_implementation="eager"
    )
    return model.get_encoder().eval()


def load(request: EngineRequest) -> ObjectDetector:
    """embedded:object_detector; ssd:mobilenet_v2_coco; a transformers detector (folder or hub); a text file of labels.

    A text file is scored by the model that its setting `image_text_encoder` names.
    """
    if request.address.scheme == "ssd":
        from curation_assets.engines import ssd_detector

        return ssd_detector.load(request)
    path = local_folder(request.address)
    if path.is_file():
        from curation_assets.engines import image_text_encoder

        encoder = image_text_encoder.load(request.for_companion("image_text_encoder"))
        labels = [line.strip() for line in each_line(path) if line.strip()]
        return ZeroShotLabels(request.identity, encoder, labels, request.settings)
    import torch
    from transformers import AutoImageProcessor, AutoModelForObjectDetection

    quiet_loading()
    if "tower" in request.companions:
        tower = local_folder(request.companions["tower"])
        processor = AutoImageProcessor.from_pretrained(tower, local_files_only=True)
        return PatchLabels(request.identity, read_tower(tower), processor, path, request.settings, request.batch_size)
    model: Any = AutoModelForObjectDetection.from_pretrained(
        path, local_files_only=True, use_safetensors=True, dtype=torch.float32
    )
    processor = AutoImageProcessor.from_pretrained(path, local_files_only=True)
    return TransformersDetector(
        request.identity,
        model.to(request.device).eval(),
        processor,
        request.settings,
        request.batch_size,
        request.device,
    )
