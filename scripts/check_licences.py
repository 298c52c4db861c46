"""Fails if an installed package is under a licence outside the allow-list. Run through `make check`."""

import json
import re
import subprocess
import sys

PERMISSIVE = frozenset(
    {
        "0BSD",
        "3-Clause BSD License",
        "AFL-2.1",
        "Apache Software License",
        "Apache-2.0",
        "BSD License",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT License",
        "PSF-2.0",
        "Python Software Foundation License",
        "Zlib",
    }
)

# Copyleft by the file: using the unmodified package puts no terms on jaxfold. Each one is named, so a new one is seen.
FILE_LEVEL_COPYLEFT = frozenset({"MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)"})
MAY_BE_FILE_LEVEL = {
    "certifi": "the list of root certificates, used as data",
    "hypothesis": "tests only",
    "orjson": "tests only, with langchain",
    "pathspec": "development tools only",
    "tqdm": "progress bars of huggingface_hub; dual MPL and MIT",
}

# Licences told in prose, read by hand: package -> what it says.
READ_BY_HAND = {
    # PDFium is BSD-3-Clause and Apache-2.0; what it is built with (FreeType, libjpeg-turbo, OpenJPEG, ...) is free.
    "pypdfium2": "BSD-3-Clause, Apache-2.0, dependency licenses",
}

# Not a licence but a remark in a package's classifiers.
REMARKS = frozenset({"DFSG approved"})


def allowed(package: str, licence: str) -> bool:
    """True if every licence that holds (one of each OR) is on the list. `;` joins classifiers: all must be allowed."""

    def one(name: str) -> bool:
        name = name.strip(" ()") if name.count("(") != name.count(")") else name.strip()
        return name in PERMISSIVE | REMARKS or (name in FILE_LEVEL_COPYLEFT and package in MAY_BE_FILE_LEVEL)

    if READ_BY_HAND.get(package) == licence:
        return True
    parts = re.split(r"\s+AND\s+|;", licence)
    return all(any(one(choice) for choice in re.split(r"\s+OR\s+", part)) for part in parts)


def installed() -> list[dict[str, str]]:
    """Name and License of every package of this environment, as pip-licenses tells them."""
    command = [sys.executable, "-m", "piplicenses", "--format=json", "--from=mixed", "--ignore-packages", "jaxfold"]
    packages: list[dict[str, str]] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return packages


def main() -> int:
    packages = installed()
    refused = [p for p in packages if not allowed(p["Name"].lower(), p["License"])]
    for package in refused:
        print(f"{package['Name']} {package['Version']}: {package['License']} is not on the list", file=sys.stderr)
    print(f"{len(packages)} packages, {len(refused)} outside the allow-list")
    return 1 if refused else 0


if __name__ == "__main__":
    raise SystemExit(main())
