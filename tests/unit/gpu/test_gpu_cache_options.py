"""How wishes of a user become what a card's cache is made with."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from strata.formats.synth import GEOMETRIES, spec_of
from strata.gpu.build import _cache_options
from strata.settings import Settings


@pytest.mark.parametrize("wish", [True, False, None])
def test_copied_experts_stay_only_where_that_is_wished(*, wish: bool | None) -> None:
    spec, _ = spec_of(GEOMETRIES["tiny"])
    settings = Settings.from_options({} if wish is None else {"keep_copied": wish})
    assert _cache_options(spec, settings).keeps_copied is bool(wish)
