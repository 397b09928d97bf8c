"""An AWS service on loopback: boto3's requests, unmodified, held to botocore's own model of the service, both ways.
What the service does is a plain object's methods; nothing of one service here."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import botocore.session
from botocore import xform_name
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator

from tests.support.http_server import Handler, http_server

# https://docs.aws.amazon.com/AmazonECS/latest/APIReference/CommonErrors.html, which each service has.
COMMON_ERRORS = {
    "AccessDeniedException",
    "ExpiredTokenException",
    "InternalFailure",
    "ServiceUnavailable",
    "ThrottlingException",
    "UnrecognizedClientException",
    "ValidationException",
}


class Fault(Exception):
    """What the service answers in place of a result. code: as the service's model or AWS's common errors name it.

    done: the operation is done nevertheless, and only its answer is lost. members: the error's own, by the model.
    """

    def __init__(self, code: str, message: str = "", status: int = 400, *, done: bool = False, **members: Any) -> None:
        super().__init__(message or code)
        self.code, self.status, self.done, self.members = code, status, done, members


class Service:
    """A service's model, its state, and the requests it received.

    operations: has a method for each operation used, named as boto3's, taking boto3's arguments and returning its
    answers. calls: operations asked for, by name. faults: put there, they are the next answers of an operation.
    silent: operations that are done, and never answered.
    """

    def __init__(self, name: str, operations: Any) -> None:
        self.model: ServiceModel = botocore.session.get_session().get_service_model(name)
        self.operations = operations
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, deque[Fault]] = {}
        self.silent: set[str] = set()
        self.url = ""
        self._lock = threading.RLock()

    def fail(self, operation: str, fault: Fault, times: int = 1) -> None:
        """The next answers of an operation (named as in the API) are this fault."""
        self.faults.setdefault(operation, deque()).extend([fault] * times)

    def answer(self, operation: OperationModel, parameters: dict[str, Any]) -> dict[str, Any]:
        """The method's answer, as JSON has it. Raises Fault, and AssertionError for what the model does not know."""
        _conforms(parameters, operation.input_shape, f"request of {operation.name}")
        with self._lock:
            self.calls[operation.name] += 1
            waiting = self.faults.get(operation.name)
            fault = waiting.popleft() if waiting else None
            if fault and not fault.done:
                raise _known(fault, operation)
            method = getattr(self.operations, xform_name(operation.name))
            try:
                answer = method(**parameters) or {}
            except Fault as refused:
                raise _known(refused, operation) from None
        _conforms(answer, operation.output_shape, f"answer of {operation.name}")
        if fault:
            raise _known(fault, operation)
        return answer

    def route(self, method: str, path: str, target: str, body: bytes) -> tuple[OperationModel, dict[str, Any]]:
        """The operation a request means and its parameters."""
        return routed(self.model, method, path, target, body)


def routed(
    model: ServiceModel, method: str, path: str, target: str, body: bytes
) -> tuple[OperationModel, dict[str, Any]]:
    """The operation a request means and its parameters, by the service's protocol (json or rest-json).

    target: the header X-Amz-Target. Raises Fault for a request of no operation.
    """
    if model.resolved_protocol == "json":
        operation = model.operation_model(target.rpartition(".")[2])
        return operation, _parsed(json.loads(body or b"{}"), operation.input_shape)
    url = urlsplit(path)
    for name in model.operation_names:
        operation = model.operation_model(name)
        names, pattern = _template(operation.http["requestUri"])
        if operation.http["method"] == method and (match := pattern.fullmatch(url.path)):
            parameters = dict(zip(names, map(unquote, match.groups()), strict=True))
            return operation, _rest(operation, parameters, parse_qs(url.query), body)
    raise Fault("UnknownOperationException", f"{method} {path}", 404)


@contextmanager
def serving(service: Service) -> Iterator[Service]:
    """The service on a free port of 127.0.0.1; ``service.url`` is its endpoint."""

    class Endpoint(Handler):
        def _handle(self) -> None:
            body = self.body()
            try:
                operation, parameters = service.route(
                    self.command, self.path, self.headers.get("X-Amz-Target", ""), body
                )
                answer = service.answer(operation, parameters)
                if operation.name in service.silent:
                    self._wait_for_the_callers_end()
                else:
                    self._send(200, _plain(answer))
            except Fault as fault:
                problem = {"__type": fault.code, "message": str(fault), **_plain(fault.members)}
                self._send(fault.status, problem, fault.code)
            except Exception as error:  # the test's own mistake: shown to boto3's caller, never retried
                self._send(400, {"__type": "FakeIsWrong", "message": repr(error)}, "FakeIsWrong")

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _handle

        def _wait_for_the_callers_end(self) -> None:
            with suppress(OSError):
                self.connection.recv(1)
            self.close_connection = True

        def _send(self, status: int, content: dict[str, Any], error: str = "") -> None:
            kind = {"x-amzn-ErrorType": error} if error else {}
            self.answer(status, json.dumps(content).encode(), {"Content-Type": "application/x-amz-json-1.1", **kind})

    with http_server(Endpoint) as service.url:
        yield service


def _conforms(value: dict[str, Any], shape: Shape | None, what: str) -> None:
    if shape is None:
        assert not value, f"{what}: the model has no members, found {value}"
        return
    report = ParamValidator().validate(value, shape)
    assert not report.has_errors(), f"{what}: {report.generate_report()}"
    # boto3's validator doesn't look at them.
    assert not (strange := list(_no_values(value, shape))), f"{what}: {', '.join(strange)}"


def _known(fault: Fault, operation: OperationModel) -> Fault:
    """The fault. Raises AssertionError for one that the operation doesn't have, or not with these members."""
    shapes = {shape.metadata.get("error", {}).get("code", shape.name): shape for shape in operation.error_shapes}
    shapes |= {shape.name: shape for shape in operation.error_shapes}
    assert fault.code in shapes.keys() | COMMON_ERRORS, f"{operation.name} has no {fault.code}"
    if fault.members:
        _conforms({**fault.members, "message": str(fault)}, shapes.get(fault.code), f"{fault.code} of {operation.name}")
    return fault


def _no_values(value: Any, shape: Shape) -> Iterator[str]:
    """What an enumeration of the model does not have."""
    match shape.type_name:
        case "structure":
            for name, member in value.items():
                yield from _no_values(member, shape.members[name]) if member is not None else ()
        case "list":
            for item in value:
                yield from _no_values(item, shape.member)
        case "map":
            for item in value.values():
                yield from _no_values(item, shape.value)
        case "string" if shape.enum and value not in shape.enum:
            yield f"{shape.name} {value!r}"


def _template(uri: str) -> tuple[list[str], re.Pattern[str]]:
    path = urlsplit(uri).path
    names = re.findall(r"{(\w+)\+?}", path)
    return names, re.compile(re.sub(r"{\w+}", "([^/]+)", re.sub(r"{\w+\+}", "(.+)", path)))


def _rest(
    operation: OperationModel, parameters: dict[str, Any], query: dict[str, list[str]], body: bytes
) -> dict[str, Any]:
    shape = operation.input_shape
    if shape is None:
        return {}
    content = json.loads(body) if body else {}
    by_wire = {member.serialization.get("name", name): (name, member) for name, member in shape.members.items()}
    found: dict[str, Any] = {}
    for wire, value in parameters.items():
        found[by_wire[wire][0]] = value
    for wire, values in query.items():
        name, member = by_wire[wire]
        found[name] = _parsed(values if member.type_name == "list" else values[0], member)
    body_members = {wire: name for wire, (name, m) in by_wire.items() if "location" not in m.serialization}
    found |= {body_members[wire]: _parsed(value, shape.members[body_members[wire]]) for wire, value in content.items()}
    return found


def _parsed(value: Any, shape: Shape | None) -> Any:
    """JSON as boto3's caller gave it: timestamps back to datetimes, numbers of the query back to numbers."""
    if shape is None or value is None:
        return value
    match shape.type_name:
        case "structure":
            known = {member.serialization.get("name", name): name for name, member in shape.members.items()}
            return {known.get(k, k): _parsed(v, shape.members.get(known.get(k, k))) for k, v in value.items()}
        case "list":
            return [_parsed(item, shape.member) for item in value]
        case "map":
            return {k: _parsed(v, shape.value) for k, v in value.items()}
        case "timestamp":
            if isinstance(value, str):
                return datetime.fromisoformat(value.replace("Z", "+00:00"))
            return datetime.fromtimestamp(value).astimezone()
        case "integer" | "long":
            return int(value)
        case _:
            return value


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items() if v is not None}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
