from __future__ import annotations

import pytest

from amx import emulated


@pytest.fixture(scope="package")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> emulated.Kernels:
    return emulated.build(tmp_path_factory.mktemp("amx"))
