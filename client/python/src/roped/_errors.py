"""The one exception of the package."""

from typing import Literal

# May the request be sent again? "always": it did not run. "safe": it may have run, so where running twice is harmless.
Resend = Literal["always", "safe", "never"]

_MOST_CHARACTERS = 1000


def printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


class Error(RuntimeError):
    """A call that was refused, in roped's own sentence, or a server that did not answer.

    It is one line that a terminal may show: of what the server sent, control characters and those that are not seen
    are escaped.

    code: what went wrong, for programs: "no_region", "busy", ... (roped.CODES has them all, with their meanings). A
        later server may have more; None where there was no answer, or one that roped did not write.
    status: HTTP status of the answer; None where there was none.
    """

    def __init__(
        self, sentence: str, status: int | None = None, code: str | None = None, resend: Resend = "never"
    ) -> None:
        super().__init__(printable(sentence[:_MOST_CHARACTERS]))
        self.status, self.code = status, code
        self._resend: Resend = resend
