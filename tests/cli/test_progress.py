"""Start-up steps as a person and as a log collector see them."""

import io
import time

import pytest

from jaxfold.cli import progress
from jaxfold.cli.progress import Steps


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_one_line_a_step() -> None:
    stream = Terminal()
    with Steps(stream) as steps:
        steps("reading")
        assert stream.getvalue() == "reading ... "
        steps("compiling")
    first, second, rest = stream.getvalue().split("\n")
    assert first.startswith("reading ... ") and first.endswith(" s")
    assert second.startswith("compiling ... ") and second.endswith(" s") and not rest


def test_a_file_gets_whole_lines_so_that_others_cannot_land_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LONG_S", 0.05)
    stream = io.StringIO()
    with pytest.raises(ValueError, match="broken"), Steps(stream) as steps:
        steps("opening")
        steps("reading")
        while "reading" not in stream.getvalue():
            time.sleep(0.01)
        print("an access line", file=stream)
        raise ValueError("broken")
    opened, *rest = stream.getvalue().splitlines()
    assert opened.startswith("opening ... ") and opened.endswith(" s")
    assert rest == ["reading ...", "an access line", "reading ... failed"]
