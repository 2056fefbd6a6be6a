"""ssd:mobilenet_v2_coco: TensorFlow's SSD-MobileNet-v2 for COCO's 80 objects, run by OpenCV on the CPU."""

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
from PIL import Image

from curation_assets.core.roles import Detection, Images, ModelIdentity
from curation_assets.engines import EngineRequest
from curation_assets.engines.packages import pinned_files

SIDE_PX = 300  # the graph scales pixels to [-1, 1] itself
#: Smallest score of an object, and most objects of an image. Of .1 to .5 this threshold separated matched captions from
#: mismatched ones best, on shards that benchmarks/photo_objects.py does not hold out. For few false labels: .3.
DEFAULTS: dict[str, Any] = {"threshold": 0.1, "max_boxes": 100, "threads": 1}
#: COCO's category numbers, of which ten are not used: the graph counts from 1 to 90.
LABELS: dict[int, str] = dict(
    zip(
        (number for number in range(1, 91) if number not in (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)),
        (
            *("person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light"),
            *("fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow"),
            *("elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee"),
            *("skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard"),
            *("tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple"),
            *("sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch"),
            *("potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard"),
            *("cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase"),
            *("scissors", "teddy bear", "hair drier", "toothbrush"),
        ),
        strict=True,
    )
)


class SsdDetector:
    """One image at a time, so that what is found in it depends on nothing else."""

    def __init__(self, identity: ModelIdentity, network: Any, settings: Mapping[str, Any]) -> None:
        """Settings: threshold (.1), max_boxes (100), threads (1).

        Raises ValueError for an unknown setting, or a threshold outside [0, 1].
        """
        unknown = sorted(set(settings) - set(DEFAULTS))
        if unknown:
            raise ValueError(f"object_detector {identity.address} has no settings {unknown}; it has {sorted(DEFAULTS)}")
        chosen = DEFAULTS | dict(settings)
        self.identity = identity
        self.network = network
        self.threshold = float(chosen["threshold"])
        self.max_boxes = int(chosen["max_boxes"])
        self.threads = int(chosen["threads"])
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"object_detector: threshold must be in [0, 1], got {self.threshold}")

    def detect_objects(self, images: Images) -> list[list[Detection]]:
        """(N,) images → N lists, best first: the objects from the threshold on, at most max_boxes."""
        before = cv2.getNumThreads()
        cv2.setNumThreads(self.threads)  # of the whole process: others get their number back
        try:
            return [self._detect(image) for image in images]
        finally:
            cv2.setNumThreads(before)

    def _detect(self, image: Image.Image) -> list[Detection]:
        pixels = np.asarray(image.convert("RGB"))  # (H, W, 3)
        # bilinear and stretched to the square, as the network was trained; its channels are RGB, so none are swapped
        self.network.setInput(cv2.dnn.blobFromImage(pixels, size=(SIDE_PX, SIDE_PX), swapRB=False, crop=False))
        rows = self.network.forward()[0, 0]  # (≤ 100, 7): image, category, score, left, top, right, bottom
        size = np.array([image.width, image.height] * 2)
        found = []
        for _, category, score, *edges in rows.astype(np.float64):
            if score >= self.threshold and int(category) in LABELS:
                left, top, right, bottom = (float(edge) for edge in np.clip(edges, 0.0, 1.0) * size)
                found.append(Detection(LABELS[int(category)], float(score), (left, top, right, bottom)))
        found.sort(key=lambda one: (-one.score, one.label, one.box))
        return found[: self.max_boxes]


def load(request: EngineRequest) -> SsdDetector:
    """The network of the pinned files; they are read when they are those that were released."""
    files = pinned_files(request.address.scheme, request.address.name)
    graph = next(str(path) for path in files.values() if path.suffix == ".pb")
    layers = next(str(path) for path in files.values() if path.suffix == ".pbtxt")
    return SsdDetector(request.identity, cv2.dnn.readNetFromTensorflow(graph, layers), request.settings)
