"""Finds the function for a method by name, calls it, and turns its result or exception into an outcome."""

from __future__ import annotations

import asyncio
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.errors import Canceled, Fatal
from quarterdeck.sdk.types import Completion, Lease
from quarterdeck.sdk.worker_core.reports import storable_text
from quarterdeck.sdk.worker_core.threads import DaemonThreadPool

RESULT_MAX_BYTES = 200 * 1024
"""The server limits a request body to 256 KiB, and the body contains more than the result."""
_MESSAGE_MAX_CHARS = 4_096
_MAX_PARAMETERS = 2
Function = Callable[..., object]


class Context:
    """The optional second parameter of a method: the invocation, the client, and whether the attempt was canceled."""

    def __init__(self, invocation: Lease, client: Quarterdeck) -> None:
        self.invocation = invocation
        self.client = client
        self._cancelled = asyncio.Event()
        self._cancelled_in_threads = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether this attempt was canceled.

        A long method should check this from time to time and raise `Canceled` to stop. A method that does not check
        runs to completion, and its result is ignored.
        """
        return self._cancelled_in_threads.is_set()

    def check(self) -> None:
        """Raise `Canceled` if this attempt was canceled."""
        if self.cancelled:
            raise Canceled("this attempt was canceled")

    async def until_cancelled(self) -> None:
        """For coroutine methods: wait until this attempt is canceled."""
        await self._cancelled.wait()

    def wait_cancelled(self, seconds: float) -> bool:
        """For methods that run in a thread: wait up to `seconds`. Returns whether this attempt was canceled."""
        return self._cancelled_in_threads.wait(seconds)

    def cancel(self) -> None:
        """Mark the attempt as canceled. The worker calls this on its event loop."""
        self._cancelled.set()
        self._cancelled_in_threads.set()


class Method:
    """A method and its function. The params are converted to the type of the function's first parameter."""

    def __init__(self, name: str, function: Function) -> None:
        self.name = name
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        parameters = [*inspect.signature(function).parameters.values()]
        if len(parameters) > _MAX_PARAMETERS or any(p.kind is p.KEYWORD_ONLY for p in parameters):
            raise TypeError(f"method {name} must take at most two positional parameters: params and context")
        self._arity = len(parameters)
        self._params_type = _params_type_of(function, parameters[0].name) if parameters else object
        # Raise now, not at the first call, if msgspec cannot decode the annotated type.
        msgspec.json.Decoder(self._params_type)

    async def run(self, context: Context, threads: DaemonThreadPool) -> Completion:
        """Run the method and return the outcome. If the asyncio task is cancelled, the CancelledError propagates."""
        lease = context.invocation
        try:
            params = msgspec.convert(lease.params, self._params_type)
        except msgspec.ValidationError as error:
            return build_failure(lease, "invalid_params", str(error), retryable=False)
        try:
            result = await self._call((params, context)[: self._arity], threads)
        except Canceled as canceled:
            return Completion(lease.id, lease.attempt_token, "canceled", error=_build_error("canceled", canceled))
        except Fatal as fatal:
            return build_failure(lease, "fatal", str(fatal), retryable=False, **fatal.data)
        except Exception as error:
            # An exception in a method is the outcome of its attempt, not an error in the worker.
            return build_failure(lease, "method_failed", str(error), type=type(error).__name__)
        return build_success(lease, result)

    async def _call(self, arguments: tuple[object, ...], threads: DaemonThreadPool) -> object:
        if not self._is_async:
            return await threads.call(self._function, *arguments)
        awaitable = self._function(*arguments)
        assert isinstance(awaitable, Awaitable)
        return await awaitable


class Methods:
    """The methods of a worker by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Method] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._by_name))

    def add(self, name: str, function: Function) -> None:
        if name in self._by_name:
            raise ValueError(f"method {name!r} is already declared")
        self._by_name[name] = Method(name, function)

    async def run(self, context: Context, threads: DaemonThreadPool) -> Completion:
        lease = context.invocation
        method = self._by_name.get(lease.method)
        if method is None:
            names = ", ".join(self) or "none"
            message = f"the service has no method {lease.method!r}; its methods: {names}"
            return build_failure(lease, "method_not_found", message, retryable=False)
        return await method.run(context, threads)


def build_success(lease: Lease, result: object) -> Completion:
    try:
        encoded = msgspec.json.encode(result)
    except (TypeError, ValueError, RecursionError) as error:
        return build_failure(lease, "result_not_json", str(error), retryable=False)
    if len(encoded) > RESULT_MAX_BYTES:
        message = f"the result has {len(encoded)} bytes; the limit is {RESULT_MAX_BYTES}"
        return build_failure(lease, "result_too_large", message, retryable=False)
    return Completion(lease.id, lease.attempt_token, "succeeded", msgspec.Raw(encoded))


def build_failure(lease: Lease, code: str, message: str, *, retryable: bool = True, **extra: object) -> Completion:
    error = _build_error(code, message, **extra)
    try:
        msgspec.json.encode(error)
    except (TypeError, ValueError, RecursionError):
        error = _build_error(code, message)  # omit data that is not JSON: the failure must be reported
    return Completion(lease.id, lease.attempt_token, "failed", error=error, retryable=retryable)


def _build_error(code: str, message: object, **extra: object) -> dict[str, object]:
    return {**extra, "code": code, "message": storable_text(str(message))[:_MESSAGE_MAX_CHARS]}


def _params_type_of(function: Function, name: str) -> type[object]:
    try:
        hint = typing.get_type_hints(function).get(name, object)
    except NameError as error:
        raise TypeError(f"the annotations of {function.__name__} cannot be resolved: {error}") from None
    return typing.cast(type[object], hint)
