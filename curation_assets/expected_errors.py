"""Errors that a user can do something about: shown as sentences. Anything else is a bug and keeps its traceback."""

from curation_assets.engines.addresses import ModelUnavailableError
from curation_assets.stores.shard_store import StoreError

EXPECTED_ERRORS = (ValueError, OSError, ModelUnavailableError, StoreError)
