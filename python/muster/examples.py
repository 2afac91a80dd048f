"""Copies the example jobs, with the small data that they read, to ./examples:

    python -m muster.examples [FOLDER]

Example jobs name their data by examples/data/..., so run them where the folder `examples` is. FOLDER gets the folder
`examples`; it is the current folder by default."""

import argparse
import pathlib
import shutil
import sys


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m muster.examples", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=".")
    destination = pathlib.Path(parser.parse_args().folder) / "examples"
    source = pathlib.Path(__file__).resolve().parent / "share" / "examples"
    if not source.is_dir():
        sys.exit(f"muster.examples: {source} does not exist, because this is no installed wheel; a clone has the examples in its root")
    try:
        shutil.copytree(source, destination)
    except FileExistsError:
        sys.exit(f"muster.examples: {destination} exists already; remove it, or name another folder: python -m muster.examples FOLDER")
    enter = "" if destination.parent == pathlib.Path(".") else f"cd {destination.parent} && "
    print(f"wrote {destination}; train a small GPT with:\n\n    {enter}muster run examples/char_gpt.yaml")


if __name__ == "__main__":
    main()
