"""Muster's package for Python: the programs of Muster, found and run by muster._programs."""


def __getattr__(name: str) -> str:
    # importlib.metadata takes longer to load than the command line takes to start.
    if name == "__version__":
        from importlib import metadata

        return metadata.version("muster-train")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
