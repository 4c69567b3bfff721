"""Where the Perfetto UI is, and the link with which it opens a trace."""

from __future__ import annotations

from urllib.parse import quote

__all__ = ["PERFETTO_PORT", "PERFETTO_UI", "perfetto_link"]

PERFETTO_UI = "https://ui.perfetto.dev"
# The Content-Security-Policy of ui.perfetto.dev lets the page fetch from http://127.0.0.1:9001, where trace_processor
# listens too, and from no other port of 127.0.0.1 (perfetto, ui/src/frontend/index.ts: setupContentSecurityPolicy;
# tools/open_trace_in_ui takes 9001 for the same reason). `ssh -L 9001:127.0.0.1:9001` brings it from another machine.
PERFETTO_PORT = 9001


def perfetto_link(url: str, *, ui: str = PERFETTO_UI) -> str:
    """The address at which a Perfetto UI opens the trace at `url`.

    The page decodes the parameter once, so what is quoted in `url` is quoted again.
    """
    return f"{ui.rstrip('/')}/#!/?url={quote(url, safe=':/')}"
