"""Errors: a script that cannot be used, and a request that the API would refuse."""

from typing import Any

from subagent_server.domain.errors import CallerError

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""The error type that the Messages API gives for a status."""


class ScriptError(CallerError):
    """A script that cannot be used; the sentence names the file, the place and what is allowed there."""

    code = "bad_script"


class ApiError(Exception):
    """An answer that is an error of the Messages API: its status, type and message."""

    def __init__(
        self, status: int, message: str, error_type: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type or error_type_of(status)
        self.retry_after = retry_after

    def body(self, request_id: str) -> dict[str, Any]:
        """Return the JSON body of the answer."""
        return error_body(self.error_type, self.message) | {"request_id": request_id}


def error_type_of(status: int) -> str:
    """Return the error type of any status from 400 to 599."""
    return ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def status_of(error_type: str) -> int:
    """Return the status that goes with an error type; 500 for one that is not in the table."""
    return next((status for status, name in ERROR_TYPES.items() if name == error_type), 500)


def error_body(error_type: str, message: str) -> dict[str, Any]:
    """Return an error as the API writes it, in a body or in the middle of a stream."""
    return {"type": "error", "error": {"type": error_type, "message": message}}


def refuse(place: str, why: str) -> ApiError:
    """Return the refusal of an invalid request: `place` is the path into the body, `why` what is wrong."""
    return ApiError(400, f"{place}: {why}")
