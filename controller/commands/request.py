"""The shell's side of requests: HTTP to the gateway over the Unix socket of the service's own user."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from controller.errors import DeviceError, PkmError
from controller.message import socket_path, token_path

TIMEOUT_S = 30.0  # a gateway that plans for the first time loads the kernels


def local_token(requests: Path) -> tuple[str | None, str]:
    """Address of the page, None if it is not served, and the token of whoever may read it.

    Raises:
        DeviceError: no gateway left one.
    """
    try:
        told = json.loads(token_path(requests).read_text())
        return told["url"], told["token"]
    except PermissionError:
        raise DeviceError(f"{token_path(requests)} is for the service's own user: others ask at the page") from None
    except (OSError, ValueError, LookupError, TypeError):
        raise _nobody(requests) from None


def login(requests: Path, user: str, password: str) -> str:
    """The token of a new session of a user.

    Raises:
        PkmError: no gateway answers, or it refuses; says why.
    """
    status, told = ask(requests, "/api/login", {"user": user, "password": password, "bearer": True}, "")
    if status != 200:
        raise PkmError(str(told.get("error", "the gateway refuses the login")))
    return str(told["token"])


def ask(requests: Path, route: str, question: dict[str, Any], token: str) -> tuple[int, dict[str, Any]]:
    """POST a question to the gateway; HTTP status and JSON of its answer.

    Raises:
        DeviceError: no gateway answers.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    connection = http.client.HTTPConnection("localhost", timeout=TIMEOUT_S)
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(TIMEOUT_S)
        try:
            link.connect(str(socket_path(requests)))
            connection.sock = link
            connection.request("POST", route, json.dumps(question), headers)
            answer = connection.getresponse()
            told = json.loads(answer.read())
        except TimeoutError:
            raise DeviceError(f"the gateway at {socket_path(requests)} did not answer within {TIMEOUT_S:g} s") from None
        except (OSError, http.client.HTTPException, ValueError):
            raise _nobody(requests) from None
    return answer.status, told


def _nobody(requests: Path) -> DeviceError:
    return DeviceError(f"no controller listens at {requests}: is `pkm run` running?")
