"""Calls of the coordinator: credentials, deadlines, retries, and the search for the one that leads."""

from __future__ import annotations

import logging
import math
import pathlib
import random
import threading
import time
from typing import Any, Callable, Dict, Iterator, Optional, Tuple, TypeVar

import grpc

from muster import _proto, errors
from muster._destination import Destination

_LOG = logging.getLogger("muster")
_CALL_SECONDS = 15.0
_FIRST_ATTEMPTS = 3  # per address, of a client that has never reached its coordinator
_BACKOFF_MIN, _BACKOFF_MAX = 0.2, 2.0
_STATUS_KEY = "grpc-status-details-bin"

T = TypeVar("T")


class Connection:
    """A coordinator, or several of which one leads. Thread-safe.

    A call is repeated while no coordinator answers, and if the answer says when to try again. It fails after `patience`
    seconds without success. A client that has reached no coordinator yet gives up after three attempts per address, because
    the address may be wrong.
    """

    def __init__(self, destination: Destination, patience: float) -> None:
        self.destination = destination
        self.where = destination.where
        self.patience = patience
        self._lock = threading.Lock()
        self._turn = 0  # index of the address to try now
        self._channels: Dict[Tuple[str, object], grpc.Channel] = {}
        self.reached = False
        self._closed = False
        _credentials(destination)  # a faulty file is an error now, and not at the first call

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    def call(self, method: str, request: Any, timeout: float = _CALL_SECONDS, retry: bool = True) -> Any:
        """Calls "JobService.GetJob" and returns its response. Each attempt may take `timeout` seconds."""
        path, _, response = _proto.method(method)

        def attempt(channel: grpc.Channel) -> Any:
            function = channel.unary_unary(path, type(request).SerializeToString, response.FromString)
            return function(request, timeout=timeout, metadata=self._metadata())

        return self._repeat(attempt, retry)

    def stream(self, method: str, request: Any, timeout: float) -> Iterator[Any]:
        """Yields the responses of one stream. Raises the error that ends it. The caller uses Retry to open another one."""
        path, _, response = _proto.method(method)
        address, channel = self._channel()
        call: Any = None
        try:
            function = channel.unary_stream(path, type(request).SerializeToString, response.FromString)
            call = function(request, timeout=None if timeout == math.inf else timeout, metadata=self._metadata())
            for message in call:
                self.reached = True
                yield message
        except grpc.RpcError as error:
            self._pass_over(address, error)
            raise self.error_of(error) from None
        finally:
            if call is not None:
                call.cancel()

    def error_of(self, error: grpc.RpcError) -> errors.MusterError:
        """Returns the error of a failed call, with the coordinator and the remedy if none was reached."""
        code: str = error.code().name
        message: str = error.details() or ""
        info = _detail(error, "google.rpc.ErrorInfo")
        request = _detail(error, "google.rpc.BadRequest")
        faults = [errors.Fault(each.field, each.description) for each in request.field_violations] if request else []
        if code == "NOT_FOUND":
            message = f"{self.where}: {message}"  # another coordinator may have it
        if code == "UNAVAILABLE" and info is None:
            code, message = self._explain(message)
        found = errors.error_of(code, message, info.reason if info else "", faults)
        delay = _detail(error, "google.rpc.RetryInfo")
        found.retry_seconds = delay.retry_delay.ToTimedelta().total_seconds() if delay else None
        return found

    def _explain(self, message: str) -> Tuple[str, str]:
        if "http1.x server" in message:  # gRPC has no status code for this
            return "INVALID_ARGUMENT", (
                f"{self.where} is the port of a status page or of metrics, not of the coordinator's calls; give the port "
                f"of its --listen, usually 7070: {message}")
        if "handshake" in message.lower() or "certificate" in message.lower():
            return "UNAVAILABLE", (
                f"{self.where}: the TLS handshake failed; check that ca.crt in the tls folder is the coordinator's and "
                f"that its certificate has this name: {message}")
        return "UNAVAILABLE", (
            f"no coordinator answers at {self.where} (muster local up starts one; server= names another; if it has "
            f"certificates, give their folder with tls=): {message}")

    def _repeat(self, attempt: Callable[[grpc.Channel], T], retry: bool) -> T:
        attempts = Retry(self)
        while True:
            address, channel = self._channel()
            try:
                result = attempt(channel)
                self.reached = True
                return result
            except grpc.RpcError as error:
                self._pass_over(address, error)
                found = self.error_of(error)
            if not retry:
                raise found
            attempts.wait(found)

    def _metadata(self) -> Tuple[Tuple[str, str], ...]:
        """Returns the token. The file is read at each call, so that a new token is used at once."""
        if not self.destination.token_file:
            return ()
        token = _read(self.destination.token_file, "TOKEN_FILE").decode("utf-8", "replace").strip()
        return (("authorization", f"Bearer {token}"),)

    def _channel(self) -> Tuple[str, grpc.Channel]:
        """Returns the address to try now, and its channel. New certificates get a new channel."""
        with self._lock:
            if self._closed:
                raise errors.FailedPreconditionError("the client is closed; make another muster.Client()")
            address = self.destination.addresses[self._turn]
            key = (address, _stamp(self.destination))
            if key not in self._channels:
                self._channels[key] = self._dial(address)
            return address, self._channels[key]

    def _dial(self, address: str) -> grpc.Channel:
        # A leader that hangs must be noticed soon if another coordinator could take over.
        several = len(self.destination.addresses) > 1
        options = [
            ("grpc.keepalive_time_ms", 2_000 if several else 20_000),
            ("grpc.keepalive_timeout_ms", 2_000 if several else 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_receive_message_length", 64 << 20),
            ("grpc.max_send_message_length", 64 << 20),
            ("grpc.use_local_subchannel_pool", 1),  # a new channel connects at once, even while another one backs off
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.min_reconnect_backoff_ms", 2_000),  # despite its name, the limit of one attempt to connect
            ("grpc.enable_http_proxy", 0),
        ] + ([("grpc.http2.max_pings_without_data", 0)] if several else [])
        credentials = _credentials(self.destination)
        if credentials is None:
            return grpc.insecure_channel(address, options)
        return grpc.secure_channel(address, credentials, options)

    def _pass_over(self, address: str, error: grpc.RpcError) -> None:
        """After UNAVAILABLE, selects the next address and drops the channel of this one."""
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            return
        with self._lock:
            # Other threads may still use the channel. It closes when the last of them drops it.
            self._channels = {key: channel for key, channel in self._channels.items() if key[0] != address}
            if self.destination.addresses[self._turn] == address:
                self._turn = (self._turn + 1) % len(self.destination.addresses)


class Retry:
    """Waits between the attempts of one call."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._attempts = 0
        self._failed_since = 0.0

    def succeeded(self) -> None:
        self._attempts = 0

    def wait(self, error: errors.MusterError, seconds_max: float = math.inf) -> None:
        """Blocks until the next attempt, for at most `seconds_max`. Raises `error` if another attempt is useless."""
        hint = error.retry_seconds
        if hint is None and error.code != "UNAVAILABLE":
            raise error
        now = time.monotonic()
        self._attempts += 1
        if self._attempts == 1:
            self._failed_since = now
            _LOG.info("%s; trying again", error)
        addresses = len(self._connection.destination.addresses)
        is_hopeless = not self._connection.reached and hint is None and self._attempts >= _FIRST_ATTEMPTS * addresses
        if is_hopeless or now - self._failed_since >= self._connection.patience:
            raise error
        rounds, place = divmod(self._attempts, addresses)
        if place and error.code == "UNAVAILABLE":
            return  # another address has not been tried in this round
        seconds = hint or min(_BACKOFF_MIN * 2 ** min(rounds - 1, 10), _BACKOFF_MAX)
        time.sleep(min(seconds * random.uniform(1, 1.3), seconds_max))  # random, so that many clients do not retry at the same time


def _detail(error: grpc.RpcError, full_name: str) -> Any:
    """Returns the detail of this type; None if the error has none."""
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == _STATUS_KEY:
            for detail in _proto.message_type("google.rpc.Status").FromString(value).details:
                if detail.type_url.rpartition("/")[2] == full_name:
                    return _proto.message_type(full_name).FromString(detail.value)
    return None


def _files(destination: Destination) -> Tuple[pathlib.Path, ...]:
    return tuple(pathlib.Path(destination.tls, name) for name in ("ca.crt", "tls.crt", "tls.key"))


def _stamp(destination: Destination) -> object:
    """Returns a value that changes when a file of the TLS folder does."""
    if not destination.tls:
        return None
    return tuple(path.stat().st_mtime_ns if path.exists() else None for path in _files(destination))


def _credentials(destination: Destination) -> Optional[grpc.ChannelCredentials]:
    if not destination.tls:
        return None
    authority, certificate, key = _files(destination)
    proof: Dict[str, bytes] = {}
    if certificate.exists():
        proof = {"private_key": _read(key, "CERTIFICATE_FILES"),
                 "certificate_chain": _read(certificate, "CERTIFICATE_FILES")}
    if destination.token_file:
        _read(destination.token_file, "TOKEN_FILE")
    return grpc.ssl_channel_credentials(_read(authority, "CERTIFICATE_FILES"), **proof)


def _read(path: object, reason: str) -> bytes:
    try:
        content = pathlib.Path(str(path)).read_bytes()
    except OSError as error:
        raise errors.UnavailableError(f"{path}: {error.strerror}", reason=reason) from None
    if not content:
        raise errors.UnavailableError(f"{path}: is empty", reason=reason)
    return content
