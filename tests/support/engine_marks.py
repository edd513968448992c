"""For tests over HTTP that need not run on the engines that their neighbours run on."""

from __future__ import annotations

import pytest

ON_SQLITE = pytest.mark.parametrize("server", ["sqlite"], indirect=True)
"""What never comes as far as the database is the same on either."""
ON_BOTH = pytest.mark.parametrize("server", ["sqlite", "postgresql"], indirect=True)
STARTED_ON_SQLITE = pytest.mark.parametrize("engine_url", ["sqlite"], indirect=True)
"""The same for what starts a server of its own: that costs more than the test itself."""
