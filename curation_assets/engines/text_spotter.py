"""The role text_spotter: text in images, detected and read by PP-OCR through rapidocr (ONNX, on the CPU)."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from curation_assets.core.roles import Images, ModelIdentity
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.needs import RoleNeeds
from curation_assets.numeric.text_masking import TextBox

NEEDS = RoleNeeds(settings=("side_px", "box_threshold", "threads"), package="rapidocr", extra="ocr")
#: Larger images are scaled down to this longer side for the detector, as T-MARS does; smaller ones stay as they are:
#: enlarging 128 px scenes to PP-OCR's own 736 costs several times as much and boxes stars and windows.
DETECTOR_SIDE_PX = 512
MIN_SIDE_PX = 8  # a smaller image holds no readable letter, and the detector refuses it


class RapidOcrSpotter:
    """Boxes with the text read in them. An image is looked at on its own, so its boxes depend on nothing else."""

    def __init__(self, identity: ModelIdentity, reader: Any) -> None:
        """`reader`: a RapidOCR."""
        self.identity = identity
        self.reader = reader

    def spot_text(self, images: Images) -> list[list[TextBox]]:
        """(N,) images → N lists of boxes, in reading order; a box without a readable letter has text ''."""
        return [self._spot(image) for image in images]

    def _spot(self, image: Image.Image) -> list[TextBox]:
        if min(image.size) < MIN_SIDE_PX:
            return []
        pixels = np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])  # (H, W, 3) BGR, as OpenCV has it
        result: Any = self.reader(pixels)  # its type depends on what the reader detects
        if result.boxes is None or result.txts is None:
            return []
        rows = zip(result.boxes, result.txts, result.scores, strict=True)
        return [
            TextBox(text, min(1.0, max(0.0, float(score))), tuple(float(number) for number in np.ravel(box)))
            for box, text, score in rows
        ]


def load(request: EngineRequest) -> RapidOcrSpotter:
    """embedded:pp-ocr (in the package rapidocr), or path: of a folder with one *_det*.onnx and one *_rec*.onnx.

    Settings: `side_px` (longer side from which the detector scales down), `box_threshold` (smallest confidence of the
    detector), `threads`. Raises ValueError for a folder without the two models.
    """
    from rapidocr import RapidOCR

    settings = {"side_px": DETECTOR_SIDE_PX, "box_threshold": 0.5, "threads": 1} | dict(request.settings)
    folder = local_folder(request.address)
    params: dict[str, Any] = {
        "Global.log_level": "error",
        "Global.use_cls": False,  # upside-down text is not looked for
        "Global.text_score": 0.0,  # methods decide which confidence is enough
        "Det.model_path": _model(folder, "_det"),
        "Rec.model_path": _model(folder, "_rec"),
        "Det.limit_side_len": int(settings["side_px"]),
        "Det.limit_type": "max",
        "Det.box_thresh": float(settings["box_threshold"]),
        "EngineConfig.onnxruntime.intra_op_num_threads": int(settings["threads"]),
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    }
    return RapidOcrSpotter(request.identity, RapidOCR(params=params))


def _model(folder: Path, part: str) -> str:
    models = sorted(path for path in folder.glob("*.onnx") if part in path.name)
    if len(models) != 1:
        raise ValueError(f"{folder}: expected one *{part}*.onnx model for the text_spotter, got {len(models)}")
    return str(models[0])
