"""Parses the SQL recipes when it is loaded: the fork server does so once, and no worker again (a second and a half)."""

from curation_assets.flow.sql import recipes

recipes()
