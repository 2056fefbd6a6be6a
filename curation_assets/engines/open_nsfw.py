"""onnx:yahoo_open_nsfw: Yahoo's open_nsfw (a thin ResNet-50) by ONNX Runtime on the CPU."""

import io
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image

from curation_assets.core.roles import Images, ModelIdentity
from curation_assets.engines import EngineRequest
from curation_assets.engines.packages import pinned_files

RESIZED_PX, CROP_PX = 256, 224
MEAN_BGR = np.array([104.0, 117.0, 123.0], dtype=np.float32)
DEFAULTS = {"threads": 1}


def open_nsfw_pixels(image: Image.Image) -> np.ndarray:
    """(224, 224, 3) float32: blue, green, red minus the training set's mean, as the network was trained.

    The image is stretched to 256 × 256 px (bilinear), written as a JPEG of quality 75 and read again, and its centre
    is cut out. The JPEG is a part of it: without, probabilities differ by some hundredths.
    """
    stretched = image.convert("RGB").resize((RESIZED_PX, RESIZED_PX), Image.Resampling.BILINEAR)
    packed = io.BytesIO()
    stretched.save(packed, format="JPEG", quality=75)
    with Image.open(packed) as read:
        pixels = np.asarray(read.convert("RGB"), dtype=np.float32)  # (256, 256, 3)
    edge = (RESIZED_PX - CROP_PX) // 2
    return pixels[edge : edge + CROP_PX, edge : edge + CROP_PX, ::-1] - MEAN_BGR


class OpenNsfw:
    """Probability of pornographic content; the network knows no other kind of unsafe image."""

    def __init__(self, identity: ModelIdentity, session: Any) -> None:
        self.identity = identity
        self.session = session
        self.input_name = session.get_inputs()[0].name

    def unsafe_probabilities(self, images: Images) -> np.ndarray:
        """(N,) images of any mode → (N,) float64 in [0, 1]. One at a time: batches are no faster on a CPU."""
        return np.array([self._probability(image) for image in images], dtype=np.float64)

    def _probability(self, image: Image.Image) -> float:
        pixels = open_nsfw_pixels(image)[np.newaxis]  # (1, 224, 224, 3)
        safe_unsafe = self.session.run(None, {self.input_name: pixels})[0]  # (1, 2)
        return min(1.0, max(0.0, float(safe_unsafe[0, 1])))


def load(request: EngineRequest) -> OpenNsfw:
    """The network of the pinned file. Setting: threads (1). Raises ValueError for another setting."""
    unknown = sorted(set(request.settings) - set(DEFAULTS))
    if unknown:
        raise ValueError(
            f"safety_classifier {request.address.text} has no settings {unknown}; it has {sorted(DEFAULTS)}"
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int((DEFAULTS | dict(request.settings))["threads"])
    options.inter_op_num_threads = 1
    (path,) = pinned_files(request.address.scheme, request.address.name).values()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return OpenNsfw(request.identity, session)
