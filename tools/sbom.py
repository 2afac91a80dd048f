#!/usr/bin/env python3
"""Writes the bill of materials of an image's root as SPDX 2.3 JSON: the program with its version, commit and SHA-256, and the
Debian packages that its libraries come from, with versions and licences.

    tools/sbom.py ROOT NAME=PROGRAM [--packages FILE] [--to FILE]

NAME is the program in ROOT (usr/bin/NAME, or lib/NAME.bin of tools/bundle.sh). PROGRAM is the same program before it was stripped;
it prints its version. --packages is packages.tsv of tools/image_root.sh, by default ROOT's. --to is usr/share/muster/sbom.spdx.json
in ROOT by default. Licences come from /usr/share/doc/PACKAGE/copyright if that is machine-readable; otherwise the document says
NOASSERTION and names the file. SOURCE_DATE_EPOCH is the document's date."""

import argparse
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.parse

# SPDX's names for Debian's short names of licences. Every other name becomes a LicenseRef with Debian's text.
SPDX = {
    "apache-2.0": "Apache-2.0", "apache-2": "Apache-2.0", "asl-2.0": "Apache-2.0", "bsd-2-clause": "BSD-2-Clause",
    "bsd-3-clause": "BSD-3-Clause", "bsl-1.0": "BSL-1.0", "boost-1.0": "BSL-1.0", "cc0-1.0": "CC0-1.0", "cc0": "CC0-1.0",
    "expat": "MIT", "isc": "ISC", "zlib": "Zlib", "openssl": "OpenSSL", "curl": "curl", "mpl-2.0": "MPL-2.0", "unicode": "Unicode-DFS-2016",
    "gpl-1+": "GPL-1.0-or-later", "gpl-2": "GPL-2.0-only", "gpl-2+": "GPL-2.0-or-later", "gpl-3": "GPL-3.0-only", "gpl-3+": "GPL-3.0-or-later",
    "lgpl-2": "LGPL-2.0-only", "lgpl-2+": "LGPL-2.0-or-later", "lgpl-2.1": "LGPL-2.1-only", "lgpl-2.1+": "LGPL-2.1-or-later",
    "lgpl-3": "LGPL-3.0-only", "lgpl-3+": "LGPL-3.0-or-later",
}


def fail(text):
    sys.exit(f"sbom: {text}")


def paragraphs(text):
    """Returns the paragraphs of a file in Debian's machine-readable format: values by field name, continuation lines included."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        fields, last = {}, None
        for line in block.splitlines():
            match = re.match(r"([A-Za-z-]+):\s*(.*)", line)
            if match:
                last = match[1].lower()
                fields[last] = match[2]
            elif last is not None and line[:1] in (" ", "\t"):
                fields[last] += "\n" + line.strip()
        if fields:
            found.append(fields)
    return found


class Licences:
    """Makes SPDX expressions, and collects the texts of licences that SPDX has no name for."""

    def __init__(self):
        self.texts = {}

    def name(self, short, text):
        if short.lower() in SPDX:
            return SPDX[short.lower()]
        reference = "LicenseRef-debian-" + (re.sub(r"[^A-Za-z0-9.-]+", "-", short).strip("-") or "unnamed")
        text = text or f"See the copyright file of the package; Debian calls it {short}."
        wanted, number = reference, 1
        while self.texts.setdefault(wanted, (short, text))[1] != text:  # the same name in another package
            number += 1
            wanted = f"{reference}-{number}"
        return wanted

    def expression(self, synopsis, texts):
        """Returns the SPDX expressions of a synopsis such as "GPL-2+ or Expat, and BSD-3-clause", one for each part of the "and"."""
        parts = []
        for alternatives in re.split(r",?\s+and\s+|\s*,\s*(?!or\b)", synopsis.strip()):
            names = []
            for short in re.split(r",?\s+or\s+", alternatives):
                base, _, exception = short.strip().partition(" with ")
                names.append(self.name(f"{base}-with-{exception}" if exception else base, texts.get(short.strip().lower(), "")))
            parts.append(f"({' OR '.join(names)})" if len(names) > 1 else names[0])
        return parts

    def of_copyright(self, text):
        """Returns the expression for all files of a package; NOASSERTION if the copyright file is not machine-readable."""
        fields = paragraphs(text)
        if not fields or "format" not in fields[0]:
            return "NOASSERTION"
        licences = [entry["license"].partition("\n") for entry in fields if "license" in entry]
        texts = {short.strip().lower(): body for short, _, body in licences if body}
        parts = []
        for entry in fields:
            if "files" not in entry or "license" not in entry or entry["files"].strip() == "debian/*":
                continue  # images do not contain Debian's packaging files
            synopsis = entry["license"].partition("\n")[0].strip()
            if synopsis:
                parts += [part for part in self.expression(synopsis, texts) if part not in parts]
        return " AND ".join(sorted(set(parts))) or "NOASSERTION"


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return digest.hexdigest()


def program_version(program):
    """Returns the (version, commit) that the program prints: a daemon for --version, the command line for `version`."""
    for argument in ("--version", "version"):
        told = subprocess.run([program, argument], capture_output=True, text=True, check=False, timeout=60).stdout
        match = re.match(r"muster (\S+)\ncommit (\S+)\n", told)
        if match:
            return match[1], match[2]
    return fail(f"{program} tells no version, neither by --version nor by version")


def package_ids(names):
    return {name: "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]+", "-", name) for name in names}


def debian_package(name, version, identifier, licences, architecture):
    path = f"/usr/share/doc/{name}/copyright"
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            licence = licences.of_copyright(file.read())
    except OSError:
        licence = "NOASSERTION"
    quoted = urllib.parse.quote(name, safe=""), urllib.parse.quote(version, safe="")
    return {
        "SPDXID": identifier, "name": name, "versionInfo": version, "supplier": "Organization: Debian", "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False, "licenseConcluded": "NOASSERTION", "licenseDeclared": licence, "copyrightText": "NOASSERTION",
        "comment": f"Some of its libraries are in the image, with {path}.", "primaryPackagePurpose": "LIBRARY",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                          "referenceLocator": f"pkg:deb/debian/{quoted[0]}@{quoted[1]}?arch={architecture}&distro=debian-12"}],
    }


def read_packages(path):
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    if not rows or rows[0] != ["package", "version"] or any(len(row) != 2 for row in rows):
        fail(f"{path} is no list of packages and versions")
    return [tuple(row) for row in rows[1:]]


def document(name, program, packages, version, commit, created):
    """Returns the SPDX document of an image. `program`: the file in the image."""
    licences = Licences()
    digest = sha256(program)
    ids = package_ids([package for package, _ in packages])
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    described = "SPDXRef-Package-muster-program"
    ours = {
        "SPDXID": described, "name": name, "versionInfo": version, "supplier": "NOASSERTION", "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION",
        "primaryPackagePurpose": "APPLICATION", "sourceInfo": f"built from commit {commit}",
        "checksums": [{"algorithm": "SHA256", "checksumValue": digest}],
    }
    others = [debian_package(package, number, ids[package], licences, architecture) for package, number in packages]
    relationships = [("SPDXRef-DOCUMENT", "DESCRIBES", described)] + [(described, "DEPENDS_ON", ids[package]) for package, _ in packages]
    body = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"{name}-{version}",
        "creationInfo": {"created": created, "creators": [f"Tool: muster-sbom-{version}"]},
        "packages": [ours] + others,
        "hasExtractedLicensingInfos": [{"licenseId": reference, "name": short, "extractedText": text}
                                       for reference, (short, text) in sorted(licences.texts.items())],
        "relationships": [{"spdxElementId": source, "relationshipType": kind, "relatedSpdxElement": target}
                          for source, kind, target in relationships],
    }
    # SPDX requires that different documents have different namespaces, so the namespace contains a hash.
    content = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return {**body, "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{version}-{content[:32]}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root")
    parser.add_argument("program")
    parser.add_argument("--packages")
    parser.add_argument("--to")
    arguments = parser.parse_args()
    share = os.path.join(arguments.root, "usr", "share", "muster")
    name, _, built = arguments.program.partition("=")
    places = [os.path.join(arguments.root, *path) for path in (("usr", "bin", name), ("lib", name + ".bin"))]
    program = next((place for place in places if os.path.exists(place)), None)
    if program is None:
        fail(f"{name} is neither of {' and '.join(places)}")
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or datetime.datetime.now(datetime.timezone.utc).timestamp())
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    version, commit = program_version(os.path.realpath(built))
    packages = read_packages(arguments.packages or os.path.join(share, "packages.tsv"))
    made = document(name, program, packages, version, commit, created)
    with open(arguments.to or os.path.join(share, "sbom.spdx.json"), "w", encoding="utf-8") as file:
        json.dump(made, file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main()
