"""open_clip addresses: MODEL@TAG → checked configuration and weight file."""

import difflib
from pathlib import Path

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.engines.addresses import ModelAddress, unavailable_message
from curation_assets.engines.pins import check_weights


def check_open_clip_name(address: ModelAddress) -> dict[str, object]:
    """The catalogue entry of open_clip:MODEL@TAG.

    Raises ValueError for an unknown model or tag (with choices), and where model and tag disagree about
    quick GELU: open_clip only warns there and the scores are silently wrong (formulas.md §4).
    """
    import open_clip

    models = open_clip.list_models()
    if address.name not in models:
        near = difflib.get_close_matches(address.name, models, n=3)
        raise ValueError(
            f"{address.text}: open_clip knows no model {address.name!r}; nearest: {', '.join(near) or 'none'}"
        )
    tags = open_clip.list_pretrained_tags_by_model(address.name)
    if address.revision not in tags:
        raise ValueError(f"{address.text}: {address.name} has no tag {address.revision!r}; tags: {', '.join(tags)}")
    entry = open_clip.get_pretrained_cfg(address.name, address.revision)
    model_has_it = bool((open_clip.get_model_config(address.name) or {}).get("quick_gelu", False))
    tag_has_it = bool(entry.get("quick_gelu", False))
    if model_has_it != tag_has_it:
        plain = address.name.removesuffix("-quickgelu")
        better = f"{plain}-quickgelu" if tag_has_it else plain
        raise ValueError(
            f"{address.text}: QuickGELU mismatch, the weights were trained with quick_gelu={tag_has_it} and the model "
            f"is built with quick_gelu={model_has_it}; scores would be wrong. Use open_clip:{better}@{address.revision}"
        )
    return entry


def open_clip_weights(address: ModelAddress) -> Path:
    """Weight file of open_clip:MODEL@TAG in the cache, fetched if absent.

    Raises ValueError as `check_open_clip_name`, ModelUnavailableError when it cannot be fetched.
    """
    import open_clip

    entry = check_open_clip_name(address)
    try:
        path = Path(open_clip.download_pretrained(entry, prefer_hf_hub=True))
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelUnavailableError(unavailable_message(address, error)) from error
    check_weights(path)
    return path


def cached_open_clip_weights(address: ModelAddress) -> Path | None:
    """Weight file of open_clip:MODEL@TAG where a fetch would have put it, without a network; None where it is not.

    Raises ValueError as `check_open_clip_name`.
    """
    from huggingface_hub import try_to_load_from_cache
    from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

    entry = check_open_clip_name(address)
    if "file" in entry:
        return Path(str(entry["file"]))
    if repository := str(entry.get("hf_hub", "")):
        name, _, file = repository.rpartition("/")
        for candidate in [file] if file else [HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME]:
            found = try_to_load_from_cache(name, candidate)
            if isinstance(found, str):
                return Path(found)
        return None
    path = Path.home() / ".cache" / "clip" / str(entry["url"]).rpartition("/")[2]
    return path if path.is_file() else None
