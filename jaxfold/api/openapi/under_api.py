"""What the routes under /api and /uploads do, in a line each: (method, route) -> tag and summary.

Their bodies are open objects in the document; docs/api.md has the fields.
"""

from collections.abc import Mapping
from types import MappingProxyType

OLLAMA, PAGE = "Ollama", "Web page and files"

UNDER_API: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType(
    {
        ("POST", "/api/chat"): (OLLAMA, "Continue a conversation; without a model, a turn of the web page"),
        ("POST", "/api/chat/ollama"): (OLLAMA, "Continue a conversation"),
        ("POST", "/api/generate"): (OLLAMA, "Continue a prompt"),
        ("POST", "/api/embed"): (OLLAMA, "One vector for each text"),
        ("POST", "/api/embeddings"): (OLLAMA, "The vector of one text"),
        ("GET", "/api/tags"): (OLLAMA, "The models that are served"),
        ("GET", "/api/ps"): (OLLAMA, "The models that are loaded"),
        ("POST", "/api/show"): (OLLAMA, "Facts about a model"),
        ("GET", "/api/version"): (OLLAMA, "The version of this server"),
        ("POST", "/api/pull"): (OLLAMA, "Fetch a model of the catalogue, where --allow-pull is set"),
        ("POST", "/api/create"): (OLLAMA, "Not served: 501"),
        ("POST", "/api/copy"): (OLLAMA, "Not served: 501"),
        ("POST", "/api/push"): (OLLAMA, "Not served: 501"),
        ("DELETE", "/api/delete"): (OLLAMA, "Not served: 501"),
        ("POST", "/api/blobs/{digest}"): (OLLAMA, "Not served: 501"),
        ("GET", "/api/models"): (PAGE, "The served model, as the page shows it"),
        ("POST", "/api/models/load"): (PAGE, "Whether this model is the one that is served"),
        ("GET", "/api/queue/status"): (PAGE, "How many turns run and wait"),
        ("POST", "/api/sessions"): (PAGE, "Open a session of the page"),
        ("DELETE", "/api/sessions/{session_id}"): (PAGE, "Forget a session of the page"),
        ("POST", "/api/upload"): (PAGE, "Store a file for a turn of the page"),
        ("GET", "/uploads/{name}"): (PAGE, "A stored file"),
    }
)
