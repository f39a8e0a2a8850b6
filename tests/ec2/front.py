"""An HTTP endpoint in front of the moto server. It adds features that moto lacks, refuses calls on request, and records calls.

moto has no placement groups, price list or limit of capacity; it ignores client tokens and shows new instances immediately; its
console output dates from 2006.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.sax.saxutils import escape

Form = dict[str, str]
_UNITS = {"instanceType": "Hrs", "volumeApiName": "GB-Mo"}
NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"


@dataclass
class Refusal:
    """A refusal, with `code`, of the next `times` calls of `action` that `applies` accepts."""

    action: str
    code: str
    message: str
    times: int
    applies: Callable[[Form], bool]


@dataclass
class Front:
    """The front of moto. `url`: the endpoint; `calls`: (action, parameters) of every call; `consoles`: outputs by instance id."""

    moto_port: int
    calls: list[tuple[str, Form]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    groups: dict[str, dict[str, str]] = field(default_factory=dict)
    consoles: dict[str, str] = field(default_factory=dict)
    latest: dict[str, str] = field(default_factory=dict)  # console outputs by instance, where the latest differs
    tokens: dict[str, tuple[Form, tuple[int, str, bytes]]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # ids of ended instances
    blind: int = 0  # number of DescribeInstances calls that show nothing yet
    prices: dict[str, float] = field(
        default_factory=lambda: {"m5.2xlarge": 0.384, "m5.large": 0.096, "c5.2xlarge": 0.34, "gp3": 0.08}
    )
    market: list[tuple[str, str, float]] = field(default_factory=list)  # type, zone, and the spot price at one moment
    scores: dict[str, int] = field(default_factory=dict)  # placement score for spot instances, by zone id
    before: Callable[[str, Form], bool] = lambda action, form: True  # returns False if the call is lost before moto
    after: Callable[[str, Form, bytes], None] = lambda action, form, body: None

    def __post_init__(self) -> None:
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                front.serve(self, body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def refuse(
        self, action: str, code: str, message: str = "no", *, times: int = 1, applies: Callable[[Form], bool] = lambda form: True
    ) -> None:
        self.refusals.append(Refusal(action, code, message, times, applies))

    def actions(self) -> list[str]:
        return [action for action, _ in self.calls]

    def serve(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        target = request.headers.get("X-Amz-Target", "")
        form = dict(parse_qsl(body.decode())) if not target else {}
        action = form.get("Action") or target.rsplit(".", 1)[-1]
        self.calls.append((action, form))
        if not self.before(action, form):
            request.close_connection = True
            return
        status, kind, answer = self._answer(request, action, form, body)
        if status == 200:
            self.after(action, form, answer)
        try:
            request.send_response(status)
            request.send_header("Content-Type", kind)
            request.send_header("Content-Length", str(len(answer)))
            request.end_headers()
            request.wfile.write(answer)
        except OSError:  # the caller was killed
            request.close_connection = True

    def _answer(self, request: BaseHTTPRequestHandler, action: str, form: Form, body: bytes) -> tuple[int, str, bytes]:
        for refusal in self.refusals:
            if refusal.action == action and refusal.times > 0 and refusal.applies(form):
                refusal.times -= 1
                return _error(refusal.code, refusal.message)
        if action == "GetProducts":
            wanted = {term["Field"]: term["Value"] for term in json.loads(body)["Filters"]}
            ((name, unit),) = [(wanted[key], unit) for key, unit in _UNITS.items() if key in wanted]
            rates = [_product(self.prices[name], unit)] if name in self.prices else []
            # a reserved block of capacity is paid in advance
            rates += [_product(0.0, unit) for _ in rates if unit == "Hrs" and wanted.get("marketoption") != "OnDemand"]
            return 200, "application/x-amz-json-1.1", json.dumps({"FormatVersion": "aws_v1", "PriceList": rates}).encode()
        if action == "DescribeSpotPriceHistory" and self.market:
            return _xml(action, f"<spotPriceHistorySet>{''.join(_price(*each) for each in self.market)}</spotPriceHistorySet>")
        if action == "GetSpotPlacementScores":
            scores = [
                f"<item><availabilityZoneId>{zone}</availabilityZoneId><score>{n}</score></item>"
                for zone, n in self.scores.items()
            ]
            return _xml(action, f"<spotPlacementScoreSet>{''.join(scores)}</spotPlacementScoreSet>")
        if action == "DescribeRegions":  # only some of the regions
            names = ("eu-west-1", "us-east-1", "us-west-2")
            return _xml(
                action, f"<regionInfo>{''.join(f'<item><regionName>{name}</regionName></item>' for name in names)}</regionInfo>"
            )
        if action == "DescribeInstances" and self.blind > 0:
            self.blind -= 1
            return _xml(action, "<reservationSet/>")
        if action == "DescribeInstances" and form.get("Filter.1.Name") == "client-token":
            _, (_, _, answer) = self.tokens.get(form["Filter.1.Value.1"], ({}, (200, "", b"")))
            numbered = {f"InstanceId.{n}": name for n, name in enumerate(sorted(_instances(answer)), 1)}
            asked = {"Action": action, "Version": form["Version"], **numbered}
            return self._forward(request, urlencode(asked).encode()) if numbered else _xml(action, "<reservationSet/>")
        if action == "RunInstances":
            return self._run(request, form, body)
        if action == "TerminateInstances":
            done = self._forward(request, body)
            self.ended |= _instances(done[2])
            return done
        if action.endswith(("PlacementGroup", "PlacementGroups")):
            return self._placement(action, form)
        if action == "GetConsoleOutput" and form["InstanceId"] in self.consoles:
            printed = self.latest if form.get("Latest") == "true" and form["InstanceId"] in self.latest else self.consoles
            text = base64.b64encode(printed[form["InstanceId"]].encode()).decode()
            return _xml(action, f"<instanceId>{form['InstanceId']}</instanceId><output>{text}</output>")
        return self._forward(request, body)

    def _run(self, request: BaseHTTPRequestHandler, form: Form, body: bytes) -> tuple[int, str, bytes]:
        token = form["ClientToken"]
        if token not in self.tokens:
            answer = self._forward(request, body)
            if answer[0] != 200:
                return answer
            self.tokens[token] = form, answer
        first, answer = self.tokens[token]
        if first != form:
            return _error("IdempotentParameterMismatch", "the token was used with other parameters")
        if (ids := _instances(answer[2])) and ids <= self.ended:
            return _error("IdempotentInstanceTerminated", "the token was used for an instance that has been terminated")
        return answer

    def _placement(self, action: str, form: Form) -> tuple[int, str, bytes]:
        if action == "CreatePlacementGroup":
            name = form["GroupName"]
            if name in self.groups:
                return _error("InvalidPlacementGroup.Duplicate", "there is one")
            prefix = "TagSpecification.1.Tag."
            keys = [key for key in form if key.startswith(prefix) and key.endswith(".Key")]
            self.groups[name] = {form[key]: form[key.removesuffix("Key") + "Value"] for key in keys}
        elif action == "DeletePlacementGroup":
            self.groups.pop(form["GroupName"], None)
        else:
            return _xml(action, f"<placementGroupSet>{''.join(self._groups(form))}</placementGroupSet>")
        return _xml(action, "<return>true</return>")

    def _groups(self, form: Form) -> list[str]:
        numbers = [key.split(".")[1] for key in form if key.startswith("Filter.") and key.endswith(".Name")]
        wanted = {form[f"Filter.{n}.Name"].removeprefix("tag:"): form[f"Filter.{n}.Value.1"] for n in numbers}
        return [
            f"<item><groupName>{name}</groupName><strategy>cluster</strategy><state>available</state><tagSet>"
            + "".join(f"<item><key>{key}</key><value>{value}</value></item>" for key, value in tags.items())
            + "</tagSet></item>"
            for name, tags in self.groups.items()
            if wanted.items() <= tags.items()
        ]

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, str, bytes]:
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("connection", "accept-encoding", "content-length")
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.moto_port, timeout=30)
        try:
            connection.request("POST", request.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers.get("Content-Type", "text/xml"), answer.read()
        finally:
            connection.close()


def _error(code: str, message: str) -> tuple[int, str, bytes]:
    text = f"<Code>{code}</Code><Message>{escape(message)}</Message>"
    return 400, "text/xml", f"<Response><Errors><Error>{text}</Error></Errors><RequestID>x</RequestID></Response>".encode()


def _instances(answer: bytes) -> set[str]:
    return set(re.findall(r"<instanceId>(.*?)</instanceId>", answer.decode()))


def _xml(action: str, inner: str) -> tuple[int, str, bytes]:
    text = f'<{action}Response xmlns="{NAMESPACE}"><requestId>x</requestId>{inner}</{action}Response>'
    return 200, "text/xml", text.encode()


def _price(name: str, zone: str, price: float) -> str:
    return (
        f"<item><instanceType>{name}</instanceType><productDescription>Linux/UNIX</productDescription><spotPrice>{price}</spotPrice>"
        f"<timestamp>2026-01-01T00:00:00.000Z</timestamp><availabilityZone>{zone}</availabilityZone></item>"
    )


def _score(of: tuple[str, int]) -> str:
    return f"<item><availabilityZoneId>{of[0]}</availabilityZoneId><score>{of[1]}</score></item>"


def _product(price: float, unit: str) -> str:
    rate = {"unit": unit, "pricePerUnit": {"USD": f"{price:.10f}"}}
    return json.dumps({"terms": {"OnDemand": {"T": {"priceDimensions": {"D": rate}}}}})
