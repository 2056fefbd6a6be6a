"""Watermark: does the text in the image mark it as an agency's, a preview, or somebody's own?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from curation_assets.methods import Columns, Example, FileSetting, Method, Values
from curation_assets.numeric.text_masking import TextBox
from curation_assets.numeric.watermarks import find_watermark


def read_names(columns: Columns) -> tuple[str, ...]:
    """Names of a text file, one a line. Raises ValueError for an empty file."""
    if not columns["line"]:
        raise ValueError("a list of watermark names is empty; write one name a line, or leave the setting path out")
    return tuple(columns["line"])


def watermark(text_boxes: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str] = ()) -> Values:
    """1 where no watermark is read in the image, else 0. Rules and word lists: formulas.md §14.2.

    Details: rule (agency, notice, stamp or repeated; null where it passes) and matched, the text that met it. Only
    what the role text_spotter reads counts: a logo without letters is not seen. The setting `path` names a text file
    of further names, one a line, which are looked for as an agency's.
    """
    marks = [find_watermark([TextBox.of(row) for row in rows], names) for rows in text_boxes]
    return Values.of(
        np.array([float(mark is None) for mark in marks]),
        rule=[None if mark is None else mark.rule for mark in marks],
        matched=[None if mark is None else mark.text for mark in marks],
    )


def _box(text: str, left: float = 0.0, top: float = 0.0) -> dict[str, Any]:
    corners = [left, top, left + 40, top, left + 40, top + 10, left, top + 10]
    return {"text": text, "confidence": 0.9, "polygon": corners}


METHOD = Method(
    function=watermark,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="this project: rules on text boxes; formulas.md §14.2",
    version="2",
    summary="1 where no agency's name, notice of rights, stamp or repeated text is read in the image, else 0.",
    no_planted_kind="no planted image has a watermark",
    file_settings={"path": FileSetting("names", read_names, is_list=True)},
    example=Example(
        columns={
            "text_boxes": [
                [_box("www.alamy.com")],
                [_box("(c) 2014"), _box("Ann Lee")],
                [_box("Sample")],
                [_box("Lee Photo", left, top) for left, top in ((0.0, 0.0), (60.0, 30.0), (0.0, 60.0))],
                [_box("free sample")],
                [],
            ]
        },
        value=[0.0, 0.0, 0.0, 0.0, 1.0, 1.0],
    ),
)
