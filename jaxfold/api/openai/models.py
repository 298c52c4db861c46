"""The list of models in OpenAI's form, and which of them a name means."""

from typing import Any

from jaxfold.api.http.errors import model_not_found
from jaxfold.api.settings import ApiSettings
from jaxfold.api.settings import hosts
from jaxfold.api.state import ServerState


def models_json(state: ServerState) -> dict[str, Any]:
    """Every id that is served."""
    return {"object": "list", "data": [model_json(state, model_id) for model_id in state.settings.all_ids]}


def model_json(state: ServerState, model_id: str) -> dict[str, Any]:
    """One id that is served."""
    embeds = model_id in state.settings.encoder_ids
    engine = state.encoder_engine() if embeds else state.engine()
    return {
        "id": model_id,
        "object": "model",
        "created": state.created,
        "owned_by": "jaxfold",
        "max_model_len": None if engine is None else engine.info.context_length,
        "capabilities": ["embedding"] if embeds else ["completion"],
    }


def meant_id(name: str, settings: ApiSettings) -> str:
    """The listed id that a name means.

    Raises:
        ApiError: 404 for a name of nothing that is served.
    """
    if name in settings.all_ids:
        return name
    served = ((settings.model_ids if settings.serves_chat else (), settings.model_file),)
    for ids, file in (*served, (settings.encoder_ids, settings.encoder_file)):
        if ids and hosts(name, ids, file):
            return next((one for one in ids if hosts(name, (one,), None)), ids[0])
    raise model_not_found(name)
