"""Mean and quantiles of values that come part by part are NumPy's of all."""

import numpy as np
import pytest

from curation_assets.numeric import selection
from curation_assets.numeric import spread as module
from curation_assets.numeric.spread import spread

QUANTILES = (0, 0.05, 0.5, 0.95, 1)


@pytest.mark.parametrize(("count", "part"), [(1, 7), (128, 50), (129, 1000), (1000, 97), (5003, 1251)])
def test_as_numpy_of_all(monkeypatch: pytest.MonkeyPatch, count: int, part: int) -> None:
    monkeypatch.setattr(module, "HELD", 128)
    monkeypatch.setattr(selection, "SORTED_AT_ONCE", 50)
    values = np.random.default_rng(count).normal(0.3, 1e3, count)
    values[: count // 3] = values[0]
    mean, quantiles = spread(lambda: (values[at : at + part] for at in range(0, count, part)), count, QUANTILES)
    tolerance = 1e-15 if count > 128 else 0
    assert mean == pytest.approx(float(values.mean()), rel=tolerance, abs=tolerance * np.abs(values).mean())
    assert quantiles == np.quantile(values, QUANTILES).tolist()
