"""OpenAI's chat, completions and embeddings, and what the other protocols take from them."""
