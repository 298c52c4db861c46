"""One parameter of a call whose values are plain text: a string as it is, another type as its schema gives it."""

from collections.abc import Sequence

from jaxfold.chat.tools.jsontext import dumps
from jaxfold.chat.tools.jsontext import escaped
from jaxfold.chat.tools.offer import typed
from jaxfold.chat.tools.reading import Reading
from jaxfold.chat.tools.source import NotACallError
from jaxfold.chat.tools.source import Work


class Parameters:
    """The arguments of one call, written as JSON one parameter after the other."""

    def __init__(self, reading: Reading, name: str) -> None:
        """Begin the arguments of the tool `name`, an offered name."""
        self._reading = reading
        self._name = name
        self._keys: set[str] = set()
        reading.piece("{")

    def key(self, key: str) -> str | None:
        """Begin a parameter; the kind that its schema gives it.

        Raises:
            NotACallError: it was given already.
        """
        if key in self._keys:
            raise NotACallError
        self._reading.piece(f"{',' if self._keys else ''}{dumps(key)}:")
        self._keys.add(key)
        return self._reading.offer.kind(self._name, key)

    def value(self, kind: str | None, end: str, before: Sequence[str] = ("",)) -> Work[None]:
        """The text up to `end`, as a value of `kind` (None: a string, which is shown as it grows)."""
        source, piece = self._reading.source, self._reading.piece
        if kind is None:
            piece('"')
            yield from source.until(end, lambda text: piece(escaped(text)), before)
            piece('"')
        else:
            pieces: list[str] = []
            yield from source.until(end, pieces.append, before)
            piece(typed("".join(pieces), kind))

    def close(self) -> None:
        self._reading.piece("}")
