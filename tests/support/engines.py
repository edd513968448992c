"""For tests over HTTP that need not run on the engines that their neighbours run on."""

from __future__ import annotations

import pytest

ON_SQLITE = pytest.mark.parametrize("server", ["sqlite"], indirect=True)
"""What never comes as far as the database is the same on either."""
ON_BOTH = pytest.mark.parametrize("server", ["sqlite", "postgresql"], indirect=True)
