"""Muster's package for Python: the programs of Muster, found and run by muster._programs."""

# This file imports nothing, because the command `muster` imports it at each start. It must work without numpy and gRPC.


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib import metadata

        return metadata.version("muster-train")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
