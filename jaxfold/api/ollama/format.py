"""`format`: what a reply of /api/chat and /api/generate must match."""

from jaxfold.api.http.fields import Body
from jaxfold.api.openai.structured import read_schema
from jaxfold.chat.types import Constraint
from jaxfold.chat.types import RequestError
from jaxfold.runtime.api import GrammarSpec

PARAM = "format"


def read_format(body: Body) -> Constraint | None:
    """ "json" is any JSON object, an object is a JSON schema; "" and null ask for nothing.

    Raises:
        RequestError: it is something else, or a schema that is too long.
    """
    value = body.get(PARAM)
    if value is None or value == "":
        return None
    if value == "json":
        return Constraint(GrammarSpec("json_object"), PARAM)
    if isinstance(value, dict):
        return Constraint(read_schema(value, PARAM), PARAM)
    raise RequestError('format must be "json", a JSON schema, "" or null', param=PARAM)
