"""The methods of a worker: functions by name, what they are given, and what becomes of what they return or raise."""

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
from quarterdeck.sdk.worker_core.threads import DaemonThreadPool

RESULT_MAX = 200 * 1024
"""The server takes 256 KiB at once, and a result does not travel alone."""
_MESSAGE_MAX = 4_096
_MAX_PARAMETERS = 2
Function = Callable[..., object]


class Context:
    """What a method may know beside its params, as its second parameter."""

    def __init__(self, invocation: Lease, client: Quarterdeck) -> None:
        self.invocation = invocation
        self.client = client
        self._cancelled = asyncio.Event()
        self._cancelled_in_threads = threading.Event()

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is not wanted any more. A method that takes long looks now and then, and stops by
        raising `Canceled`; one that does not look runs to its end, and its result does not count."""
        return self._cancelled_in_threads.is_set()

    def check(self) -> None:
        """Raises `Canceled` if this attempt is not wanted any more."""
        if self.cancelled:
            raise Canceled("this attempt is not wanted any more")

    async def until_cancelled(self) -> None:
        """For methods that are coroutines: returns when the attempt is not wanted any more."""
        await self._cancelled.wait()

    def wait_cancelled(self, seconds: float) -> bool:
        """For methods that run in a thread: waits so long, and tells whether the attempt is not wanted any more."""
        return self._cancelled_in_threads.wait(seconds)

    def cancel(self) -> None:
        """By the worker, on its loop."""
        self._cancelled.set()
        self._cancelled_in_threads.set()


class Method:
    """One function. What its annotations say of its params is checked before it is called."""

    def __init__(self, name: str, function: Function) -> None:
        self.name = name
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        parameters = [*inspect.signature(function).parameters.values()]
        if len(parameters) > _MAX_PARAMETERS or any(p.kind is p.KEYWORD_ONLY for p in parameters):
            raise TypeError(f"a method is given its params and a context; {name} wants something else")
        self._arity = len(parameters)
        self._params_type = _params_type_of(function, parameters[0].name) if parameters else object
        # Said when it is declared, and not when it is called: what no params can be converted to.
        msgspec.json.Decoder(self._params_type)

    async def run(self, context: Context, threads: DaemonThreadPool) -> Completion:
        """What became of an attempt. Of a cancellation of this very task nothing is told: it is not the method's."""
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
            # Whatever a method raises is the outcome of its attempt, and nothing of the worker's.
            return build_failure(lease, "method_failed", str(error), type=type(error).__name__)
        return build_success(lease, result)

    async def _call(self, arguments: tuple[object, ...], threads: DaemonThreadPool) -> object:
        if not self._is_async:
            return await threads.call(self._function, *arguments)
        awaitable = self._function(*arguments)
        assert isinstance(awaitable, Awaitable)
        return await awaitable


class Methods:
    """The functions of a worker by their names."""

    def __init__(self) -> None:
        self._by_name: dict[str, Method] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._by_name))

    def add(self, name: str, function: Function) -> None:
        if name in self._by_name:
            raise ValueError(f"there is a method {name!r} already")
        self._by_name[name] = Method(name, function)

    async def run(self, context: Context, threads: DaemonThreadPool) -> Completion:
        lease = context.invocation
        method = self._by_name.get(lease.method)
        if method is None:
            names = ", ".join(self) or "none"
            message = f"there is no method {lease.method!r} here; there is: {names}"
            return build_failure(lease, "method_not_found", message, retryable=False)
        return await method.run(context, threads)


def build_success(lease: Lease, result: object) -> Completion:
    try:
        encoded = msgspec.json.encode(result)
    except (TypeError, ValueError, RecursionError) as error:
        return build_failure(lease, "result_not_json", str(error), retryable=False)
    if len(encoded) > RESULT_MAX:
        message = f"the result has {len(encoded)} bytes, and may have {RESULT_MAX}"
        return build_failure(lease, "result_too_large", message, retryable=False)
    return Completion(lease.id, lease.attempt_token, "succeeded", msgspec.Raw(encoded))


def build_failure(lease: Lease, code: str, message: str, *, retryable: bool = True, **extra: object) -> Completion:
    error = _build_error(code, message, **extra)
    try:
        msgspec.json.encode(error)
    except (TypeError, ValueError, RecursionError):
        error = _build_error(code, message)  # what cannot be told is left out; that it failed must be
    return Completion(lease.id, lease.attempt_token, "failed", error=error, retryable=retryable)


def _build_error(code: str, message: object, **extra: object) -> dict[str, object]:
    # Lone surrogates and U+0000, which a message may hold, are refused by the server.
    text = str(message).encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
    return {**extra, "code": code, "message": text[:_MESSAGE_MAX]}


def _params_type_of(function: Function, name: str) -> type[object]:
    try:
        hint = typing.get_type_hints(function).get(name, object)
    except NameError as unknown:
        raise TypeError(f"the annotations of {function.__name__} cannot be understood: {unknown}") from None
    return typing.cast(type[object], hint)
