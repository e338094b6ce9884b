"""The one exception of the package."""

import re

_TENSOR = re.compile(r"tensors? '([^']+)'(?:: dim (\d+))?")
_PARAMETER = re.compile(r"parameter '([^']+)'")


_MOST_CHARACTERS = 1000


def printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


class Error(RuntimeError):
    """A call that was refused, in roped's own sentence, or a server that did not answer.

    It is one line that a terminal may show: of what the server sent, control characters and those that are not seen
    are escaped.

    status: HTTP status of the answer; None where there was none.
    tensor, dim, parameter: what the sentence names, or None.
    """

    def __init__(self, sentence: str, status: int | None = None) -> None:
        sentence = printable(sentence[:_MOST_CHARACTERS])
        super().__init__(sentence)
        self.status = status
        tensor, parameter = _TENSOR.search(sentence), _PARAMETER.search(sentence)
        self.tensor = tensor[1] if tensor else None
        self.dim = int(tensor[2]) if tensor and tensor[2] else None
        self.parameter = parameter[1] if parameter else None
