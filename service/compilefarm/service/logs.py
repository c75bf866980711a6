"""Formats log lines: for people, or as JSON for programs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from compilefarm.core.printable import printable
from compilefarm.service.log_context import job_key, request_id


class TextFormatter(logging.Formatter):
    """Lines for people. The request that caused a line stands at its end. Further lines of one entry are indented, and
    control characters escaped, so that no text of a caller or a compiler passes for another entry.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        request = request_id.get()
        return f"{line} [request {request}]" if request else line

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and where there is one: request, job, exception."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request": request_id.get(),
            "job": job_key.get(),
            "exception": self.formatException(record.exc_info) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in fields.items() if value})


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}
