"""What the program is made of, and what is known to be wrong with it.

    python3 .ci/supply-chain.py sbom FILE         write a bill of materials and check it
    python3 .ci/supply-chain.py vulnerabilities   look for known vulnerabilities in what the code calls

The bill of materials is CycloneDX's JSON; it must name every module of go.mod in its version. govulncheck
reads Go's vulnerability database; where that cannot be reached it reads the copy that is published as a
Go module, as of the date in its version below. A vulnerability that is reached through a module fails.
One of Go's own library is named and does not: the cure is another Go release, on the machine that builds.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

CYCLONEDX = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"
GOVULNCHECK = "golang.org/x/vuln/cmd/govulncheck@v1.9.0"
DATABASE = "https://vuln.go.dev"
DATABASE_COPY = "golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018"


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def persist(*command, **more):
    """The output of a command that fetches something: a network may be out for a moment."""
    for pause in 5, 20, 60:
        try:
            return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more).stdout
        except subprocess.CalledProcessError as e:
            print(f"{e}: again in {pause} seconds", file=sys.stderr)
            time.sleep(pause)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def tool(package, folder):
    """The path of a program of Go's, built into the folder."""
    persist("go", "install", package, env=os.environ | {"GOBIN": folder})
    return os.path.join(folder, package.rpartition("/")[2].partition("@")[0])


def sbom(path):
    with tempfile.TemporaryDirectory() as folder:
        persist(tool(CYCLONEDX, folder), "mod", "-json", "-test", "-licenses", "-noserial", "-output", path)
    with open(path, encoding="utf-8") as f:
        named = {(c["name"], c["version"]) for c in json.load(f)["components"]}
    wanted = {(m["Path"], m["Version"]) for m in json.loads(output("go", "mod", "edit", "-json"))["Require"]}
    missing = sorted(wanted - named)
    for name, version in missing:
        print(f"{path} lacks {name} {version}")
    print(f"{path}: {len(named)} modules, {len(wanted) - len(missing)} of the {len(wanted)} that go.mod requires")
    return 1 if missing else 0


def reports():
    """What govulncheck says by the public database, or where it cannot be read by a copy."""
    with tempfile.TemporaryDirectory() as folder:
        check = [tool(GOVULNCHECK, folder), "-format", "json"]
        try:
            with urllib.request.urlopen(DATABASE + "/index/db.json", timeout=10):
                pass
            return output(*check, "-db", DATABASE, "./...")
        except (OSError, subprocess.CalledProcessError) as e:
            print(f"{DATABASE} cannot be read ({e}): reading {DATABASE_COPY} instead")
        copy = json.loads(persist("go", "mod", "download", "-json", DATABASE_COPY))["Dir"]
        return output(*check, "-db", f"file://{copy}/data/osv", "./...")


def messages(text):
    """The JSON values of a text that has one after the other."""
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        yield value


def vulnerabilities():
    summaries, found = {}, {}
    for m in messages(reports()):
        if "osv" in m:
            summaries[m["osv"]["id"]] = m["osv"].get("summary", "")
        # A finding without a function is of a module that is there, not of code that is called.
        if "finding" in m and "function" in m["finding"]["trace"][0]:
            found[m["finding"]["osv"]] = m["finding"]
    if not summaries:
        sys.exit("govulncheck said nothing of any vulnerability: the database was not read")
    wrong = 0
    for osv, finding in sorted(found.items()):
        place = finding["trace"][0]
        ours = place["module"] != "stdlib"
        wrong += ours
        print(f"{'VULNERABLE' if ours else 'of Go itself'}: {osv} {summaries[osv]}: {place['module']} {place.get('version', '')},"
              f" fixed in {finding.get('fixed_version', 'no version yet')}")
    print(f"{wrong} vulnerabilities in modules, {len(found) - wrong} in Go's own library")
    return 1 if wrong else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sbom", path]:
            sys.exit(sbom(path))
        case ["vulnerabilities"]:
            sys.exit(vulnerabilities())
        case _:
            sys.exit(__doc__)
