"""What a download loads of img2dataset, and what it leaves alone."""

import subprocess
import sys

import pytest

LOADED = """
import sys
from curation_assets.foreign.img2dataset_parts import img2dataset_parts

parts = img2dataset_parts()
heavy = ["albumentations", "img2dataset", "pandas", "ray", "torch", "wandb", "webdataset"]
print([name for name in heavy if name in sys.modules])
"""

AFTERWARDS = """
import sys
import webdataset
from curation_assets.foreign.img2dataset_parts import img2dataset_parts

assert img2dataset_parts() is img2dataset_parts()
assert sys.modules["webdataset"] is webdataset
assert hasattr(webdataset, "WebDataset")
from img2dataset import download, writer

assert callable(download)
assert writer is not img2dataset_parts().writer
assert img2dataset_parts().resizer.A.LongestMaxSize.__name__ == "LongestMaxSize"
print("fine")
"""

THREADS = """
from concurrent.futures import ThreadPoolExecutor
from curation_assets.foreign.img2dataset_parts import img2dataset_parts

with ThreadPoolExecutor(8) as executor:
    loaded = [job.result() for job in [executor.submit(img2dataset_parts) for _ in range(8)]]
print(len({id(parts.writer) for parts in loaded}))
"""

ABSENT = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "img2dataset":
            raise ModuleNotFoundError("No module named 'img2dataset'", name=name)

sys.meta_path.insert(0, Absent)
from curation_assets.foreign.img2dataset_parts import img2dataset_parts

try:
    img2dataset_parts()
except ImportError as error:
    print(error, {"img2dataset", "webdataset", "wandb"} & set(sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (LOADED, "[]"),
        (AFTERWARDS, "fine"),
        (THREADS, "1"),
        (ABSENT, "No module named 'img2dataset' set()"),
    ],
    ids=["loads little", "leaves the packages alone", "is loaded once", "is absent"],
)
def test_a_download_loads_parts_of_img2dataset(script: str, expected: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == expected, done.stderr
