"""The metadata services by which a cloud's machine learns its identity, as the vendors document them.

AWS: instance metadata v2. Google Cloud: the metadata server. Azure: the instance metadata service's identity endpoint.
"""

from __future__ import annotations

import json
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

ACCESS_KEY, SECRET_KEY, SESSION = "ASIATESTTESTTEST", "an-aws-secret-key", "an-aws-session-token"

INSTANCE = {"aws": "i-0123456789abcdef0", "azure": "7", "gcp": "worker-x1y2"}
"""How each cloud calls this machine."""


class MetadataService:
    """One cloud's, on a port of this machine; counts what is asked, and says what `token` is."""

    def __init__(self, cloud: str) -> None:
        self.cloud, self.token, self.lives_s, self.away = cloud, "token-1", 3600, False
        self.asked: list[str] = []
        self.resource = "https://ossrdbms-aad.database.windows.net"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> MetadataService:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    @property
    def tokens_asked(self) -> int:
        """How often a token, or the credentials that sign one, were asked for."""
        return sum("token?" in path or path.endswith("/a-role") for path in self.asked)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def environ(self) -> dict[str, str]:
        """What leads a vendor's library here, and away from any identity that this machine may have."""
        address = self.url.removeprefix("http://")
        return {
            "aws": {
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{address}",
                "AWS_CONFIG_FILE": "/nonexistent",
                "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            },
            "gcp": {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address, "CLOUDSDK_CONFIG": "/nonexistent"},
            "azure": {"AZURE_POD_IDENTITY_AUTHORITY_HOST": f"http://{address}"},
        }[self.cloud]

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        """Return the status and body of an answer."""
        self.asked.append(path)
        if self.away:
            return 503, "away"
        return getattr(self, f"_{self.cloud}")(method, urlsplit(path), headers)  # type: ignore[no-any-return]

    def _aws(self, method: str, url: Any, headers: Any) -> tuple[int, str]:
        if (method, url.path) == ("PUT", "/latest/api/token"):
            return 200, "an-imds-session"
        if headers.get("X-aws-ec2-metadata-token") != "an-imds-session":
            return 401, ""
        if url.path == "/latest/meta-data/instance-id":
            return 200, INSTANCE["aws"]
        if url.path.endswith("/security-credentials/"):
            return 200, "a-role"
        if url.path.endswith("/security-credentials/a-role"):
            return 200, json.dumps(
                {
                    "Code": "Success",
                    "Type": "AWS-HMAC",
                    "AccessKeyId": ACCESS_KEY,
                    "SecretAccessKey": SECRET_KEY,
                    "Token": SESSION,
                    "Expiration": _after(6 * 3600).strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            )
        return 404, ""

    def _gcp(self, _method: str, url: Any, headers: Any) -> tuple[int, str]:
        if headers.get("Metadata-Flavor") != "Google":
            return 403, "Missing Metadata-Flavor:Google header."
        if url.path == "/computeMetadata/v1/instance/name":
            return 200, INSTANCE["gcp"]
        account = "/computeMetadata/v1/instance/service-accounts/"
        if url.path in (f"{account}default/", f"{account}worker@acme.iam.gserviceaccount.com/"):
            return 200, json.dumps(
                {"aliases": ["default"], "email": "worker@acme.iam.gserviceaccount.com", "scopes": []}
            )
        if url.path.startswith(account) and url.path.endswith("/token"):
            if "sqlservice.login" not in "".join(parse_qs(url.query).get("scopes", [])):
                return 400, "the scope is missing"
            return 200, json.dumps({"access_token": self.token, "expires_in": self.lives_s, "token_type": "Bearer"})
        return (200, "acme") if url.path in ("", "/", "/computeMetadata/v1/project/project-id") else (404, "")

    def _azure(self, _method: str, url: Any, headers: Any) -> tuple[int, str]:
        if url.path == "/metadata/instance/compute/resourceId" and headers.get("Metadata") == "true":
            group = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/workers"
            return 200, f"{group}/virtualMachines/{INSTANCE['azure']}"
        if url.path != "/metadata/identity/oauth2/token":
            return 404, "{}"
        asked = parse_qs(url.query)
        if headers.get("Metadata") != "true" or not asked.get("resource"):
            return 400, json.dumps({"error": "invalid_request", "error_description": "Required metadata header"})
        if asked["resource"] != [self.resource]:
            return 400, json.dumps({"error": "invalid_resource", "error_description": asked["resource"][0]})
        ends = str(int(_after(self.lives_s).timestamp()))
        answer = {"access_token": self.token, "expires_in": str(self.lives_s), "expires_on": ends}
        return 200, json.dumps({**answer, "resource": asked["resource"][0], "token_type": "Bearer"})


def _after(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)


def _handler(service: MetadataService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = service.answer(self.command, self.path, self.headers)
            self.send_response(status)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("X-aws-ec2-metadata-token-ttl-seconds", "21600")
            self.send_header("Content-Type", "application/json" if body.startswith("{") else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, *arguments: Any) -> None:
            pass

    return Handler
