"""POST /api/embed and /api/embeddings, as long as no encoder is served."""

from quart import Blueprint
from quart import Response

from jaxfold.api.errors import ApiError

NO_ENCODER = "this server has no embedding model"


def ollama_embed_routes() -> Blueprint:
    """Both routes refuse with 501."""
    routes = Blueprint("ollama_embed", __name__)

    @routes.post("/api/embed")
    @routes.post("/api/embeddings")
    async def embed() -> Response:
        raise ApiError(501, NO_ENCODER)

    return routes
