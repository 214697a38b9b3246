#!/usr/bin/env bash
# Say whether the Java that PySpark is going to start is new enough, and how to get one if not.
#
# PySpark starts $JAVA_HOME/bin/java, or `java` from the PATH when JAVA_HOME is not set; so does this check.
# Exit code 0 when it is Java 17 or newer, else 1 with the reason on stderr.
set -uo pipefail

minimum=17

installed_elsewhere() {
    local home
    for home in /usr/lib/jvm/* /Library/Java/JavaVirtualMachines/*/Contents/Home \
        /opt/homebrew/opt/openjdk* /usr/local/opt/openjdk* "${HOME:-/nonexistent}"/.sdkman/candidates/java/current; do
        if [ -x "$home/bin/java" ] && [ "$(major_version "$home/bin/java")" -ge "$minimum" ]; then
            echo "$home"
            return
        fi
    done
}

major_version() {
    local major
    major="$("$1" -version 2>&1 | sed -n 's/.* version "\([0-9][0-9]*\).*/\1/p' | head -n 1)"
    echo "${major:-0}"
}

refuse() {
    local found
    echo "error: $1"
    echo "PySpark 4 needs a JDK, version $minimum or newer. To get one:"
    echo "  Debian, Ubuntu   sudo apt-get install openjdk-$minimum-jdk-headless   (or openjdk-21-jdk-headless)"
    echo "  Fedora, RHEL     sudo dnf install java-21-openjdk-headless"
    echo "  macOS            brew install openjdk@$minimum && export JAVA_HOME=\"\$(brew --prefix openjdk@$minimum)\""
    echo "  anywhere         sdk install java   (https://sdkman.io)"
    found="$(installed_elsewhere)"
    if [ -n "$found" ]; then
        echo "This machine has one that will do:  export JAVA_HOME=$found"
    else
        echo "Then run the same command again; set JAVA_HOME when several JDKs are installed."
    fi
    exit 1
} >&2

if [ -n "${JAVA_HOME:-}" ]; then
    java="$JAVA_HOME/bin/java"
    origin="JAVA_HOME=$JAVA_HOME"
    [ -x "$java" ] || refuse "JAVA_HOME is $JAVA_HOME, and there is no executable bin/java in it."
else
    java="$(command -v java)" || refuse "no Java found: JAVA_HOME is not set and there is no java on the PATH."
    origin="$java, from the PATH"
fi

version="$(major_version "$java")"
[ "$version" -ne 0 ] || refuse "the Java found ($origin) does not run: $("$java" -version 2>&1 | head -n 1)"
[ "$version" -ne 1 ] || version=8 # Java 8 and older called themselves 1.x
[ "$version" -ge "$minimum" ] || refuse "the Java found ($origin) is version $version."
