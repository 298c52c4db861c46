"""The web page and what it talks to."""
