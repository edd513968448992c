"""The worker: from claims over methods to reports, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypedDict, TypeVar, Unpack

from quarterdeck import __version__
from quarterdeck.core.retry import Policy, delay
from quarterdeck.sdk.asks import ServiceOptions
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.errors import Problem
from quarterdeck.sdk.model import Completion, Lease, Service, Token
from quarterdeck.sdk.worker.claiming import Claimer
from quarterdeck.sdk.worker.holding import BULK_MAX, Held, Holdings, Limits
from quarterdeck.sdk.worker.methods import Context, Function, Methods, failed
from quarterdeck.sdk.worker.reporting import Reporter

log = logging.getLogger("quarterdeck.sdk.worker")
F = TypeVar("F", bound=Function)
ALIVE_SECONDS = 30.0
