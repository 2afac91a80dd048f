#!/usr/bin/env python3
"""Checks that the bill of materials of a real image's root is valid SPDX 2.3 and correct. Also tests that check."""

import copy
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import sbom  # noqa: E402

# Licences of SPDX's list that the documents may contain.
KNOWN = set(sbom.SPDX.values())
DOCUMENT = ("spdxVersion", "dataLicense", "SPDXID", "name", "documentNamespace", "creationInfo", "packages", "relationships")
PACKAGE = ("SPDXID", "name", "versionInfo", "downloadLocation", "filesAnalyzed", "licenseConcluded", "licenseDeclared", "copyrightText")
ID = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")


def licence_faults(expression, references):
    if expression in ("NOASSERTION", "NONE"):
        return []
    faults = []
    if not re.fullmatch(r"(\((\S+ OR )+\S+\)|[^\s()]+)( AND (\((\S+ OR )+\S+\)|[^\s()]+))*", expression):
        faults.append(f"'{expression}' is no expression of licences")
    for name in re.findall(r"[^\s()]+", expression):
        if name not in ("AND", "OR") and name not in KNOWN and name not in references:
            faults.append(f"the licence {name} is explained nowhere")
    return faults


def faults_of(document):
    """Returns the violations of SPDX 2.3 in a document. Checks only the parts that these documents have."""
    faults = [f"{field} is missing" for field in DOCUMENT if not document.get(field)]
    if faults:
        return faults
    if document["spdxVersion"] != "SPDX-2.3" or document["dataLicense"] != "CC0-1.0" or document["SPDXID"] != "SPDXRef-DOCUMENT":
        faults.append("it is no document of SPDX 2.3")
    if not re.fullmatch(r"https?://[^#\s]+", document["documentNamespace"]):
        faults.append("documentNamespace must be a URI without #")
    created = document["creationInfo"]
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created.get("created", "")) or not created.get("creators"):
        faults.append("creationInfo: when, and by what")
    references = {info["licenseId"]: info["extractedText"] for info in document.get("hasExtractedLicensingInfos", [])}
    for reference, text in references.items():
        if not re.fullmatch(r"LicenseRef-[A-Za-z0-9.-]+", reference) or not text:
            faults.append(f"{reference}: no reference to a licence, or no text")
    ids = [document["SPDXID"]] + [package.get("SPDXID") for package in document["packages"]]
    if len(set(ids)) != len(ids) or not all(ID.fullmatch(str(identifier)) for identifier in ids):
        faults.append("SPDXIDs must be such, and each of one thing")
    for package in document["packages"]:
        faults += [f"{package.get('name')}: {field} is missing" for field in PACKAGE if package.get(field) in (None, "")]
        for field in ("licenseConcluded", "licenseDeclared"):
            faults += licence_faults(package.get(field, "NOASSERTION"), references)
        for checksum in package.get("checksums", []):
            if checksum["algorithm"] != "SHA256" or not re.fullmatch("[0-9a-f]{64}", checksum["checksumValue"]):
                faults.append(f"{package['name']}: {checksum} is no checksum")
        for other in package.get("externalRefs", []):
            if not re.fullmatch(r"pkg:deb/debian/([a-z0-9.-]|%[0-9A-F]{2})+@([A-Za-z0-9.~_-]|%[0-9A-F]{2})+\?arch=\w+&distro=debian-12", other["referenceLocator"]):
                faults.append(f"{other['referenceLocator']} is no package URL")
    for relation in document["relationships"]:
        for end in ("spdxElementId", "relatedSpdxElement"):
            if relation[end] not in ids:
                faults.append(f"{relation['relationshipType']} {relation[end]}, which is nowhere")
    if not any(relation["relationshipType"] == "DESCRIBES" for relation in document["relationships"]):
        faults.append("it describes nothing")
    return faults


class Sbom(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = os.path.join(cls.folder.name, "ps")
        umask = os.umask(0o077)  # a strict umask of the user that builds
        subprocess.run([os.path.join(HERE, "image_root.sh"), cls.root, f"muster-ps={ROOT}/services/ps/main"], check=True,
                       env={**os.environ, "SOURCE_DATE_EPOCH": "1764000000"})
        os.umask(umask)
        with open(os.path.join(cls.root, "usr", "share", "muster", "sbom.spdx.json"), encoding="utf-8") as file:
            cls.document = json.load(file)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_is_what_spdx_says(self):
        self.assertEqual(faults_of(self.document), [])
        self.assertEqual(self.document["creationInfo"]["created"], "2025-11-24T16:00:00Z")

    def test_is_of_a_root_that_every_user_can_run(self):
        for folder, _, files in os.walk(self.root):
            self.assertEqual(os.stat(folder).st_mode & 0o055, 0o055, folder)
            for path in (os.path.join(folder, name) for name in files):
                if not os.path.islink(path):
                    self.assertEqual(os.stat(path).st_mode & 0o044, 0o044, path)

    def test_names_our_program(self):
        ours = self.document["packages"][0]
        with open(os.path.join(ROOT, "VERSION"), encoding="utf-8") as file:
            self.assertEqual(ours["versionInfo"], file.read().strip())
        with open(os.path.join(self.root, "usr", "bin", "muster-ps"), "rb") as file:
            self.assertEqual(ours["checksums"][0]["checksumValue"], hashlib.sha256(file.read()).hexdigest())
        self.assertRegex(ours["sourceInfo"], "built from commit (unknown|[0-9a-f]{12}(-dirty)?)$")
        self.assertEqual(sbom.program_version(os.path.join(ROOT, "cli", "muster"))[0], ours["versionInfo"])

    def test_names_every_package_that_a_library_of_the_root_is_of(self):
        listed = {package["name"]: package["versionInfo"] for package in self.document["packages"][1:]}
        libraries = os.path.join(self.root, "usr", "lib", "x86_64-linux-gnu")
        names = os.listdir(libraries)
        self.assertGreater(len(names), 10)
        owners = {name: set() for name in names}
        # Packages name files either with or without /usr, which contains the merged /lib. So half of these paths do not exist.
        told = subprocess.run(["dpkg-query", "-S"] + [f"{top}/lib/x86_64-linux-gnu/{name}" for name in names for top in ("", "/usr")],
                              capture_output=True, text=True, check=False).stdout
        for line in told.splitlines():
            package, _, path = line.rpartition(": ")
            owners[os.path.basename(path)].add(package.partition(":")[0])
        for name in names:
            self.assertTrue(owners[name] & set(listed), f"{name} is of {owners[name]}")
        told = subprocess.run(["dpkg-query", "-W", "-f", "${Package}\t${Version}\n"] + sorted(listed), capture_output=True, text=True,
                              check=True).stdout
        self.assertEqual(dict(line.split("\t") for line in told.splitlines()), listed)
        self.assertEqual({name: package["licenseDeclared"] for name in ("zlib1g", "libunwind8")
                          for package in self.document["packages"] if package["name"] == name}, {"zlib1g": "Zlib", "libunwind8": "MIT"})

    def test_is_the_same_again(self):
        again = os.path.join(self.folder.name, "again.json")
        subprocess.run([os.path.join(HERE, "sbom.py"), self.root, f"muster-ps={ROOT}/services/ps/main", "--to", again], check=True,
                       env={**os.environ, "SOURCE_DATE_EPOCH": "1764000000"})
        with open(again, encoding="utf-8") as file:
            self.assertEqual(json.load(file), self.document)

    def test_faults_are_found(self):
        def fault(change):
            document = copy.deepcopy(self.document)
            change(document)
            return faults_of(document)
        for message, change in [
                ("packages is missing", lambda it: it.update(packages=[])),
                ("no document of SPDX 2.3", lambda it: it.update(spdxVersion="SPDX-2.2")),
                ("must be a URI", lambda it: it.update(documentNamespace="muster")),
                ("each of one thing", lambda it: it["packages"][1].update(SPDXID=it["packages"][2]["SPDXID"])),
                ("downloadLocation is missing", lambda it: it["packages"][1].pop("downloadLocation")),
                ("explained nowhere", lambda it: it["packages"][1].update(licenseDeclared="Beerware")),
                ("no expression", lambda it: it["packages"][1].update(licenseDeclared="MIT Zlib")),
                ("is no checksum", lambda it: it["packages"][0]["checksums"][0].update(checksumValue="1")),
                ("is no package URL", lambda it: it["packages"][1]["externalRefs"][0].update(referenceLocator="libc6")),
                ("which is nowhere", lambda it: it["packages"].pop()),
                ("describes nothing", lambda it: it["relationships"].pop(0))]:
            self.assertTrue(any(message in text for text in fault(change)), (message, fault(change)))


class Licences(unittest.TestCase):
    def declared(self, *licences):
        text = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\n"
        text += "\n".join(f"Files: {index}\nCopyright: somebody\nLicense: {licence}\n" for index, licence in enumerate(licences))
        self.found = sbom.Licences()
        return self.found.of_copyright(text)

    def test_of_debian_have_names_of_spdx(self):
        self.assertEqual(self.declared("Expat"), "MIT")
        self.assertEqual(self.declared("GPL-2+ or BSD-3-clause"), "(GPL-2.0-or-later OR BSD-3-Clause)")
        self.assertEqual(self.declared("Apache-2.0", "Expat and Zlib", "Expat"), "Apache-2.0 AND MIT AND Zlib")
        self.assertEqual(self.declared("Apache-2.0\n\nFiles: debian/*\nCopyright: x\nLicense: GPL-3"), "Apache-2.0")

    def test_that_spdx_does_not_know_come_with_their_text(self):
        self.assertEqual(self.declared("Lucent\n Do as you please."), "LicenseRef-debian-Lucent")
        self.assertEqual(self.found.texts, {"LicenseRef-debian-Lucent": ("Lucent", "Do as you please.")})
        self.assertEqual(self.found.name("Lucent", "Do not."), "LicenseRef-debian-Lucent-2")

    def test_that_no_program_can_read_are_not_guessed(self):
        self.assertEqual(sbom.Licences().of_copyright("This is free software.\n\nLicense: GPL-2\n"), "NOASSERTION")


if __name__ == "__main__":
    unittest.main()
