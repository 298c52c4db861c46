"""The formats by name, and the one that a model writes."""

from collections.abc import Container
from collections.abc import Mapping
from types import MappingProxyType

from jaxfold.chat.tools.bare import BareJson
from jaxfold.chat.tools.dsml import Dsml
from jaxfold.chat.tools.format import ToolFormat
from jaxfold.chat.tools.gemma import Gemma
from jaxfold.chat.tools.glm import Glm
from jaxfold.chat.tools.harmony import Harmony
from jaxfold.chat.tools.hermes import Hermes
from jaxfold.chat.tools.llama import Llama
from jaxfold.chat.tools.mistral import Mistral
from jaxfold.chat.tools.qwen_xml import QwenXml

FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {one.name: one for one in (Hermes(), QwenXml(), Gemma(), Glm(), Dsml(), Harmony(), Mistral(), Llama(), BareJson())}
)
# The texts in a template that give its format away. The first row whose texts are all there decides.
SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("dsml", ("｜DSML｜",)),
    ("gemma", ("<|tool_call>",)),
    ("glm", ("<arg_key>",)),
    ("qwen-xml", ("<function=", "<parameter=")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("hermes", ("<tool_call>",)),
    ("hermes", ("<tool_calls>",)),
    ("hermes", ("<TOOLCALL>",)),
    ("llama", ("<|python_tag|>",)),
    ("llama", ("<|start_header_id|>", "parameters")),
)
# Tokens that only models of one format have, for templates that write no call themselves.
TOKENS: tuple[tuple[str, str], ...] = (("dsml", "｜DSML｜"), ("gemma", "<|tool_call>"), ("mistral", "[TOOL_CALLS]"))


def find_format(template: str | None, shows_tools: bool, vocabulary: Container[str]) -> ToolFormat:
    """The format of a model: by its template, then by its tokens.

    A template that does not show tools leaves the choice to the server, which asks for Hermes' format.
    """
    for name, texts in SIGNS:
        if template is not None and all(text in template for text in texts):
            return FORMATS[name]
    if not shows_tools:
        return FORMATS["hermes"]
    return FORMATS[next((name for name, token in TOKENS if token in vocabulary), "json")]
