"""Who may use the server: host names, origins, keys."""
