"""Parts of scripts/make_goldens.py. They run in the maker's own environment (with torch), never in tests."""
