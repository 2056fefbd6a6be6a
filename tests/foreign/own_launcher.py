"""A launcher that only a dagster.yaml that was read names."""

import dagster as dg


class OwnLauncher(dg.DefaultRunLauncher):
    """As Dagster's."""
