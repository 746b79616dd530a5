"""The verbs of the Makefile that need Python: record, outputs, verify, model, bench, pictures, freeze, tags."""

import argparse
import sys

from . import local, pictures, record, timing, versions
from .errors import ClassroomError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m classroom")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, what in {
        "record": "record a chapter's scenes again and save its notebook's outputs",
        "outputs": "run a chapter's notebook on its recordings and save its outputs",
    }.items():
        verbs.add_parser(verb, help=what).add_argument("chapter", choices=versions.chapters())
    verbs.add_parser("verify", help="ask the local model every recorded request again and compare")
    verbs.add_parser("model", help="serve the local model").add_argument("--port", type=int, default=8088)
    verbs.add_parser("bench", help="what a turn costs in the loop itself")
    verbs.add_parser("pictures", help="draw the pictures of the README")
    verbs.add_parser("freeze", help="keep the package at the top in its chapter")
    verbs.add_parser("tags", help="build the tags from the last commit")
    args = parser.parse_args()
    try:
        match args.verb:
            case "record":
                record.record(args.chapter)
            case "outputs":
                record.write_outputs(record.notebook_of(args.chapter))
            case "verify":
                record.verify()
            case "model":
                local.serve(args.port)
            case "bench":
                timing.main()
            case "pictures":
                print("\n".join(f"drew {file.relative_to(versions.ROOT)}" for file in pictures.draw()))
            case "freeze":
                print(versions.freeze())
            case "tags":
                print("\n".join(versions.tags()))
    except ClassroomError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
