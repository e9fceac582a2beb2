"""The scripts of `examples/` as modules."""

import pytest

from support.loops import example


@pytest.fixture(scope="module")
def script(request):
    """The script that the test file is named after."""
    return example(request.path.stem.removeprefix("test_"))
