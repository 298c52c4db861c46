"""What Ollama's lists of models say of the encoder."""

from collections.abc import Mapping
from typing import Any

from jaxfold.api.embedding_service import EmbeddingService
from jaxfold.api.settings import ModelFile

FOREVER = "9999-12-31T23:59:59Z"


def running_encoder(service: EmbeddingService, listed: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of /api/ps, made from the one of /api/tags."""
    info = service.engine.info
    return {
        **listed,
        "expires_at": FOREVER,
        "size": info.weight_bytes,
        "size_vram": 0 if info.platform == "cpu" else info.weight_bytes,
        "context_length": info.context_length,
    }


def shown_encoder(service: EmbeddingService, file: ModelFile | None, listed: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of /api/show."""
    info = service.engine.info
    facts: dict[str, Any] = {
        "general.architecture": info.model_type,
        f"{info.model_type}.context_length": info.context_length,
        f"{info.model_type}.embedding_length": info.dimensions,
        f"{info.model_type}.pooling_type": info.pooling,
    }
    if file is not None:
        facts |= {"general.parameter_count": file.parameters, "file": file.path.name, "size": file.size}
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": listed["details"],
        "model_info": facts,
        "capabilities": ["embedding"],
        "modified_at": listed["modified_at"],
    }
