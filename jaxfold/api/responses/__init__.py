"""OpenAI's Responses, with the store of finished ones."""
