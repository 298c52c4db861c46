"""The `jaxfold` command: one module a subcommand, loaded only when it is used."""

from jaxfold.cli.app import main

__all__ = ["main"]
