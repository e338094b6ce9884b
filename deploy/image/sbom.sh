#!/bin/sh
# The bill of materials of an image, SPDX 2.3 in JSON: the daemon, and packages
# of Debian or Ubuntu, all that are installed where none are named.
#   sbom.sh PROGRAM [PACKAGE...]
set -eu
program=$1
shift
version=$("$program" --version | sed 's/.* //')
digest=$(sha256sum "$program" | cut -d ' ' -f 1)
distribution=$(sed -n 's/^ID=//p' /etc/os-release)
created=$(date -u ${SOURCE_DATE_EPOCH:+-d "@$SOURCE_DATE_EPOCH"} +%Y-%m-%dT%H:%M:%SZ)

# shellcheck disable=SC2016 # dpkg-query's own variables
dpkg-query -W -f '${Package} ${Version} ${Architecture}\n' "$@" |
    awk -v version="$version" -v digest="$digest" -v created="$created" \
        -v distribution="$distribution" '
function package(id, name, version, more) {
    return sprintf("{\"SPDXID\": \"SPDXRef-%s\", \"name\": \"%s\", \"versionInfo\": \"%s\", " \
        "\"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false, " \
        "\"copyrightText\": \"NOASSERTION\", \"licenseConcluded\": \"NOASSERTION\", %s}",
        id, name, version, more)
}
function relation(from, how, to) {
    return sprintf("{\"spdxElementId\": \"SPDXRef-%s\", \"relationshipType\": \"%s\", " \
        "\"relatedSpdxElement\": \"SPDXRef-%s\"}", from, how, to)
}
BEGIN {
    packages = package("roped", "roped", version, "\"licenseDeclared\": \"Apache-2.0\", " \
        "\"checksums\": [{\"algorithm\": \"SHA256\", \"checksumValue\": \"" digest "\"}]")
    relations = relation("DOCUMENT", "DESCRIBES", "roped")
}
{
    id = "deb-" $1
    gsub(/[^A-Za-z0-9.-]/, "-", id)
    purl = $2
    gsub(/[+]/, "%2B", purl)
    gsub(/:/, "%3A", purl)
    packages = packages ",\n  " package(id, $1, $2, "\"licenseDeclared\": \"NOASSERTION\", " \
        "\"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", " \
        "\"referenceType\": \"purl\", \"referenceLocator\": \"pkg:deb/" distribution "/" \
        $1 "@" purl "?arch=" $3 "\"}]")
    relations = relations ",\n  " relation("roped", "DEPENDS_ON", id)
}
END {
    printf "{\"spdxVersion\": \"SPDX-2.3\", \"dataLicense\": \"CC0-1.0\",\n" \
        "\"SPDXID\": \"SPDXRef-DOCUMENT\", \"name\": \"roped-%s\",\n" \
        "\"documentNamespace\": \"https://spdx.org/spdxdocs/roped-%s-%s\",\n" \
        "\"creationInfo\": {\"created\": \"%s\", \"creators\": [\"Tool: roped-sbom\"]},\n" \
        "\"packages\": [\n  %s],\n\"relationships\": [\n  %s]}\n",
        version, version, digest, created, packages, relations
}'
