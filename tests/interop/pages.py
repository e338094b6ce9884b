"""The pages of the repository, and the examples in them.

A fenced block says what it holds. One of sh, python or c is an example: a test
runs it as it stands there, unless the line above it says

    *Not run by the tests: it needs a GPU.*

so that whoever reads the page knows too. Any other kind is shown, not run:
what a program prints, a document, a change, a picture.
"""

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ["client", "deploy", "kernels", "server", "tests"]
PAGES = sorted(ROOT.glob("*.md")) + sorted(page for room in ROOMS for page in (ROOT / room).rglob("*.md"))
EXAMPLES = ("sh", "python", "c")
SHOWN = ("text", "json", "diff", "mermaid")
NOT_RUN = re.compile(r"\*Not run by the tests: (it|they) .+\.\*")


@dataclasses.dataclass(frozen=True)
class Block:
    page: str  # from the root
    line: int  # of its fence
    language: str
    text: str
    is_run: bool

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks_of(page):
    lines, blocks, start = page.read_text().splitlines(), [], None
    for i, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = i
            continue
        assert line == "```", f"{page}:{i + 1}: a fence ends with what is no end"
        above = next((text for text in reversed(lines[:start]) if text), "")
        language = lines[start].removeprefix("```")
        is_run = language in EXAMPLES and not NOT_RUN.fullmatch(above)
        text = "\n".join(lines[start + 1 : i]) + "\n"
        blocks.append(Block(str(page.relative_to(ROOT)), start + 1, language, text, is_run))
        start = None
    assert start is None, f"{page}:{start + 1}: a fence without an end"
    return blocks


# pages whose text blocks are what the example before them prints
PRINTED = ("deploy/TUTORIAL.md", "client/MODELS.md")


def printed_by(block, blocks):
    """What the page shows behind an example as its output, or None."""
    behind = blocks[blocks.index(block) + 1 :][:1]
    is_shown = block.page in PRINTED and behind and behind[0].page == block.page and behind[0].language == "text"
    return behind[0].text if is_shown else None


def is_printed(found, shown):
    """Dots in a line stand for anything in it, and a line of dots for any lines."""
    pattern = ""
    for line in shown.splitlines():
        pattern += "(?:.*\n)*?" if line == "..." else ".*".join(re.escape(part) for part in line.split("...")) + "\n"
    return re.fullmatch(pattern, found) is not None


def all_blocks():
    return [block for page in PAGES for block in blocks_of(page)]


def modules_of(block):
    """What a Python block imports."""
    found = re.findall(r"^(?:import|from) ([\w., ]+?)(?: import .*| as .*)?$", block.text, re.MULTILINE)
    return {name.strip().split(" ")[0].split(".")[0] for names in found for name in names.split(",")}


def section(text, name):
    return text.split(f"\n## {name}\n")[1].split("\n## ")[0]
